"""Mutants of rljob_runtime.egress."""

from hack.mutants import Mutant

PROXY = "tests/unit/egress/test_proxy.py"
RULES = "tests/unit/egress/test_rules.py"

MUTANTS = (
    Mutant(
        name="a host whose name ends alike is named too",
        target="rljob_runtime.egress.rules:HostRule.match",
        before='name.endswith(f".{self.name}")',
        after="name.endswith(self.name)",
        tests=(f"{RULES}::test_which_hosts_an_environment_names",),
    ),
    Mutant(
        name="strangers' names lead into the cluster",
        target="rljob_runtime.egress.rules:_may_connect",
        before="match is Match.EXACT",
        after="True",
        tests=(f"{RULES}::test_which_addresses_a_name_may_lead_to",),
        canary=True,
    ),
    Mutant(
        name="a name leads to a cloud's credentials",
        target="rljob_runtime.egress.rules:_may_connect",
        before="any(plain in network for network in _NEVER)",
        after="False",
        tests=(f"{RULES}::test_which_addresses_a_name_may_lead_to",),
    ),
    Mutant(
        name="the egress proxy connects strangers",
        target="rljob_runtime.egress.proxy:EgressProxy._environment",
        before='raise Refused(407, "the request has no proxy key of this job") from error',
        after='return "calc"',
        tests=(f"{PROXY}::test_a_stranger_gets_no_connection",),
    ),
    Mutant(
        name="the server gets the proxy key",
        target="rljob_runtime.egress.requests:parse_request",
        before="name.lower() not in _OF_A_HOP",
        after="True",
        tests=(f"{PROXY}::test_a_page_is_asked_for_without_the_key",),
    ),
    Mutant(
        name="an environment takes all connections of the proxy",
        target="rljob_runtime.egress.proxy:EgressProxy._place",
        before="self._by_environment[environment] >= self._limits.of_an_environment",
        after="False",
        tests=(f"{PROXY}::test_connections_have_a_bound",),
    ),
    Mutant(
        name="the connections of all environments have no bound",
        target="rljob_runtime.egress.proxy:EgressProxy._place",
        before="self._by_environment.total() >= self._limits.connections",
        after="False",
        tests=(f"{PROXY}::test_connections_have_a_bound",),
    ),
    Mutant(
        name="connections that ask nothing end at the address that has fewest",
        target="rljob_runtime.egress.proxy:EgressProxy._asks",
        before="max(self._asking, key=lambda one: len(self._asking[one]))",
        after="min(self._asking, key=lambda one: len(self._asking[one]))",
        tests=(f"{PROXY}::test_connections_that_ask_nothing_keep_no_other_out",),
    ),
    Mutant(
        name="connections that ask nothing have no bound",
        target="rljob_runtime.egress.proxy:EgressProxy._asks",
        before="sum(map(len, self._asking.values())) > self._limits.asking",
        after="False",
        tests=(f"{PROXY}::test_connections_that_ask_nothing_keep_no_other_out",),
    ),
    Mutant(
        name="a lookup that no client waits for does not count",
        target="rljob_runtime.egress.proxy:EgressProxy._looked_up",
        before="self._lookups[environment] >= self._limits.lookups_of_an_environment",
        after="False",
        tests=(f"{PROXY}::test_slow_name_servers_of_one_environment_keep_no_other_waiting",),
    ),
)
