"""Cluster DNS: its server reads every answer from the API server at that moment, so none is stale.

    python -m hack.local_cluster.control_plane.dns KUBECONFIG ADDRESS

A records of ``service.namespace.svc.cluster.local`` (the ClusterIP, or a headless Service's ready endpoints) and of
``hostname.service.namespace.svc.cluster.local``. Every other name does not exist: there is no way out of the cluster.
"""

from __future__ import annotations

import socket
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hack.local_cluster.kube import Api, ApiError
from hack.local_cluster.settings import DOMAIN, ClusterError

_A, _IN = 1, 1
_NXDOMAIN, _SERVFAIL = 3, 2
_TTL = 1
_MAX_UDP = 512


def lookup(api: Api, name: str) -> list[str] | None:
    """IPv4 addresses of a name; None when it does not exist. Raises ApiError when the API server cannot say."""
    suffix = f".svc.{DOMAIN}"
    name = name.lower().rstrip(".")
    labels = name.removesuffix(suffix).split(".")
    if not name.endswith(suffix) or len(labels) not in (2, 3):
        return None
    *host, service, namespace = labels
    found = api.find(f"/api/v1/namespaces/{namespace}/services/{service}")
    if found is None:
        return None
    cluster_ip = found["spec"].get("clusterIP")
    if not host and cluster_ip and cluster_ip != "None":
        return [cluster_ip]
    endpoints = api.find(f"/api/v1/namespaces/{namespace}/endpoints/{service}") or {}
    addresses = [a for subset in endpoints.get("subsets") or [] for a in subset.get("addresses") or []]
    if host:
        return [a["ip"] for a in addresses if a.get("hostname") == host[0]] or None
    return [a["ip"] for a in addresses]


def parse(query: bytes) -> tuple[str, int, int]:
    """Name, type, and where the question ends. Raises ValueError on anything but one plain question."""
    try:
        if struct.unpack_from(">H", query, 4)[0] != 1:
            raise ValueError("not exactly one question")
        at, labels = 12, []
        while length := query[at]:
            if length > 63:
                raise ValueError("compressed name in a question")
            labels.append(query[at + 1 : at + 1 + length].decode("ascii"))
            at += 1 + length
        kind, _ = struct.unpack_from(">HH", query, at + 1)
        return ".".join(labels), kind, at + 5
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"malformed question: {error}") from error


def respond(query: bytes, end: int, addresses: list[str] | None, kind: int, code: int = 0) -> bytes:
    """Return the reply to ``query``, whose question ends at ``end``.

    Addresses beyond a datagram are left out, without the truncation bit: there is no server over TCP to ask again.
    """
    records = addresses if addresses and kind == _A else []
    fitting = records[: (_MAX_UDP - end) // 16]
    flags = 0x8580 | (_NXDOMAIN if addresses is None and not code else code)
    head = query[:2] + struct.pack(">HHHHH", flags, 1, len(fitting), 0, 0) + query[12:end]
    answer = b"\xc0\x0c" + struct.pack(">HHIH", _A, _IN, _TTL, 4)
    return head + b"".join(answer + socket.inet_aton(address) for address in fitting)


def serve(api: Api, address: str) -> None:
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        server.bind((address, 53))
    except OSError as error:
        raise ClusterError(
            f"{address}:53: {error.strerror}; does another DNS server listen on all addresses?"
        ) from error

    def answer(query: bytes, client: tuple[str, int]) -> None:
        try:
            name, kind, end = parse(query)
        except ValueError as error:
            print(f"{client[0]}: {error}", flush=True)
            return
        try:
            reply = respond(query, end, lookup(api, name), kind)
        except ApiError as error:
            print(f"{name}: {error}", flush=True)
            reply = respond(query, end, [], kind, _SERVFAIL)
        server.sendto(reply, client)

    with ThreadPoolExecutor(16) as pool:
        while True:
            pool.submit(answer, *server.recvfrom(2048))


if __name__ == "__main__":
    serve(Api(Path(sys.argv[1]), timeout=3), sys.argv[2])
