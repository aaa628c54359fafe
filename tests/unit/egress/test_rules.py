"""Which hosts an environment reaches through the egress proxy, and at which of their addresses."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rljob_runtime.egress.rules import BadRules, HostRule, Match, Rules, allowed, normal_name

RULES = Rules.parse({"calc": ["pypi.org", "*.example.com", "db.internal:5432"], "shell": ["shell.example.com"]})


@pytest.mark.parametrize(
    ("environment", "host", "port", "match"),
    [
        ("calc", "pypi.org", 443, Match.EXACT),
        ("calc", "PyPI.org.", 80, Match.EXACT),
        ("calc", "pypi.org", 22, None),
        ("calc", "notpypi.org", 443, None),
        ("calc", "pypi.org.evil.net", 443, None),
        ("calc", "files.pypi.org", 443, None),
        ("calc", "a.b.example.com", 443, Match.PATTERN),
        ("calc", "example.com", 443, None),
        ("calc", "badexample.com", 443, None),
        ("calc", "db.internal", 5432, Match.EXACT),
        ("calc", "db.internal", 443, None),
        ("shell", "pypi.org", 443, None),
        ("shell", "shell.example.com", 443, Match.EXACT),
        ("stranger", "pypi.org", 443, None),
        ("calc", "1.2.3.4", 443, None),
        ("calc", "pypi.org\x00.example.com", 443, None),
    ],
)
def test_which_hosts_an_environment_names(environment: str, host: str, port: int, match: Match | None) -> None:
    assert RULES.match(environment, host, port) is match


@pytest.mark.parametrize(
    ("address", "exact", "pattern"),
    [
        ("93.184.216.34", True, True),
        ("2606:4700::1111", True, True),
        ("10.0.0.1", True, False),
        ("192.168.1.1", True, False),
        ("172.16.0.1", True, False),
        ("100.64.0.1", True, False),
        ("fd12::1", True, False),
        ("::ffff:10.0.0.1", True, False),
        ("64:ff9b::a00:1", True, False),
        ("127.0.0.1", False, False),
        ("::1", False, False),
        ("::ffff:127.0.0.1", False, False),
        ("64:ff9b::7f00:1", False, False),
        ("169.254.169.254", False, False),
        ("64:ff9b::a9fe:a9fe", False, False),
        ("fd00:ec2::254", False, False),
        ("100.100.100.200", False, False),
        ("168.63.129.16", False, False),
        ("fe80::1", False, False),
        ("0.0.0.0", False, False),
        ("::", False, False),
        ("224.0.0.1", False, False),
        ("ff0e::1", False, False),
        ("240.0.0.1", False, False),
        ("255.255.255.255", False, False),
        ("2002:7f00:1::1", False, False),
        ("2001:0:4136:e378::", False, False),
    ],
)
def test_which_addresses_a_name_may_lead_to(address: str, exact: bool, pattern: bool) -> None:
    one = ipaddress.ip_address(address)
    assert [bool(allowed(match, [one])) for match in (Match.EXACT, Match.PATTERN)] == [exact, pattern]


@given(st.ip_addresses())
@example(ipaddress.ip_address("::ffff:169.254.169.254"))
def test_a_pattern_leads_to_public_addresses_only(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if allowed(Match.PATTERN, [address]):
        assert allowed(Match.EXACT, [address])
        assert address.is_global or address in ipaddress.ip_network("64:ff9b::/96")
    for match in Match:
        assert not (allowed(match, [address]) and (address.is_loopback or address.is_link_local))


@given(st.text(max_size=40), st.integers(0, 70_000))
def test_a_host_that_none_names_is_refused(host: str, port: int) -> None:
    name = normal_name(host)
    named = name in ("pypi.org", "db.internal") or (name or "").endswith(".example.com")
    assert RULES.match("calc", host, port) is None or named


@pytest.mark.parametrize(
    "text", ["2130706433", "0x7f.1", "127.1", "0x7f", "1.2.3.4", "::1", "a..b", "", "-a", "a b", "a/b"]
)
def test_what_is_no_name(text: str) -> None:
    assert normal_name(text) is None
    with pytest.raises(BadRules, match="is no host"):
        HostRule.parse(text)


@pytest.mark.parametrize("text", ["*", "*.", "a.*.b", "a:0", "a:65536", "a:x", "a:"])
def test_a_rule_that_cannot_be_read(text: str) -> None:
    with pytest.raises(BadRules, match="is no host"):
        HostRule.parse(text)


def test_rules_are_lists_of_hosts() -> None:
    for given_rules in ([], {"calc": "pypi.org"}, None):
        with pytest.raises(BadRules):
            Rules.parse(given_rules)
