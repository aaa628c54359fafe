"""The cluster's DNS server, on messages as they travel."""

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack.local_cluster.control_plane import dns

HEADLESS = {"spec": {"clusterIP": "None"}}
ENDPOINTS = {"subsets": [{"addresses": [{"ip": "10.1.0.2", "hostname": "a"}, {"ip": "10.1.0.3"}]}]}


OBJECTS = {
    "/api/v1/namespaces/ns/services/web": {"spec": {"clusterIP": "10.2.0.9"}},
    "/api/v1/namespaces/ns/services/peers": HEADLESS,
    "/api/v1/namespaces/ns/services/empty": HEADLESS,
    "/api/v1/namespaces/ns/endpoints/peers": ENDPOINTS,
}


class FakeApi:
    def find(self, path):
        return OBJECTS.get(path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("web.ns.svc.cluster.local", ["10.2.0.9"]),
        ("WEB.ns.svc.cluster.local.", ["10.2.0.9"]),
        ("peers.ns.svc.cluster.local", ["10.1.0.2", "10.1.0.3"]),
        ("a.peers.ns.svc.cluster.local", ["10.1.0.2"]),
        ("b.peers.ns.svc.cluster.local", None),
        ("empty.ns.svc.cluster.local", []),
        ("none.ns.svc.cluster.local", None),
        ("web.ns.svc", None),
        ("ns.svc.cluster.local", None),
        ("a.b.web.ns.svc.cluster.local", None),
        ("example.org", None),
    ],
)
def test_lookup(name, expected):
    assert dns.lookup(FakeApi(), name) == expected


def question(name, kind=1):
    labels = b"".join(bytes([len(x)]) + x.encode() for x in name.split("."))
    return b"\x12\x34" + struct.pack(">HHHHH", 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def test_answer_repeats_the_question_and_carries_every_address():
    query = question("web.ns.svc.cluster.local")
    name, kind, end = dns.parse(query)
    assert (name, kind, end) == ("web.ns.svc.cluster.local", 1, len(query))
    reply = dns.respond(query, end, ["10.2.0.9", "10.2.0.10"], kind)
    ident, flags, questions, answers, _, _ = struct.unpack_from(">HHHHHH", reply)
    assert (ident, flags & 0x000F, questions, answers) == (0x1234, 0, 1, 2)
    assert reply[12:end] == query[12:end]
    assert [socket.inet_ntoa(reply[end + 12 + 16 * n :][:4]) for n in range(2)] == ["10.2.0.9", "10.2.0.10"]


@pytest.mark.parametrize(
    ("addresses", "kind", "code", "rcode", "count"),
    [
        (None, 1, 0, 3, 0),  # no such name
        ([], 1, 0, 0, 0),  # a Service without endpoints
        (["10.0.0.1"], 28, 0, 0, 0),  # there is no IPv6
        ([], 1, 2, 2, 0),  # the API server cannot say
        (["10.0.0.1"] * 100, 1, 0, 0, 30),  # as many as fit
    ],
)
def test_reply_codes(addresses, kind, code, rcode, count):
    query = question("a.b", kind)
    reply = dns.respond(query, len(query), addresses, kind, code)
    _, flags, _, answers, _, _ = struct.unpack_from(">HHHHHH", reply)
    assert (flags & 0x000F, answers) == (rcode, count)
    assert len(reply) <= 512


@given(st.binary(max_size=80))
def test_garbage_is_refused_not_fatal(message):
    try:
        name, _, end = dns.parse(message)
    except ValueError:
        return
    assert end <= len(message)
    assert all(len(label) <= 63 for label in name.split("."))


@given(st.integers(0, 40))
def test_every_cut_of_a_question_is_refused(length):
    query = question("web.ns.svc.cluster.local")
    with pytest.raises(ValueError, match=r"malformed|not exactly"):
        dns.parse(query[: min(length, len(query) - 1)])
