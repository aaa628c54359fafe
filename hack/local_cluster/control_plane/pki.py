"""PKI: certificates (by openssl), bearer tokens and kubeconfigs."""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.local_cluster.settings import ClusterError

_DAYS = "3650"


@dataclass(frozen=True)
class User:
    """A token's owner. ``file`` names its kubeconfig."""

    file: str
    name: str
    groups: tuple[str, ...] = ()


ADMIN = User("admin", "admin", ("system:masters",))
CONTROLLER_MANAGER = User("controller-manager", "system:kube-controller-manager")
SCHEDULER = User("scheduler", "system:kube-scheduler")
PROXY = User("kube-proxy", "system:kube-proxy")
FRONT_PROXY = "front-proxy-client"
"""The name under which the API server calls aggregated APIs for a user."""


def node_user(name: str) -> User:
    return User(name, f"system:node:{name}", ("system:nodes",))


def _openssl(*args: str | Path) -> None:
    try:
        subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise ClusterError("openssl is missing: install the package openssl") from None
    except subprocess.CalledProcessError as error:
        raise ClusterError(f"openssl {args[0]} failed: {error.stderr.strip()}") from error


def _private_key(path: Path) -> None:
    _openssl("ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", path)


def _signed(folder: Path, name: str, subject: str, extensions: str) -> None:
    """``name.key`` and ``name.crt``, signed by the folder's CA."""
    key, request, ext = (folder / f"{name}{suffix}" for suffix in (".key", ".csr", ".ext"))
    _private_key(key)
    _openssl("req", "-new", "-key", key, "-subj", subject, "-out", request)
    ext.write_text(extensions)
    _openssl(
        *("x509", "-req", "-in", request, "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-CAcreateserial"),
        *("-days", _DAYS, "-extfile", ext, "-out", folder / f"{name}.crt"),
    )
    request.unlink()
    ext.unlink()


def create(folder: Path, addresses: Sequence[str]) -> None:
    """Create a CA and what it signs, all in ``folder``, readable by its owner only.

    That is the API server's certificate for ``addresses``, its client certificates for kubelets and for aggregated
    APIs, and the key that signs service account tokens.
    """
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    _private_key(folder / "ca.key")
    _openssl(
        *("req", "-x509", "-new", "-key", folder / "ca.key", "-days", _DAYS, "-subj", "/CN=rljob-cluster-ca"),
        *("-out", folder / "ca.crt"),
    )
    names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    alternatives = [f"IP:{a}" for a in dict.fromkeys(addresses)] + [f"DNS:{n}" for n in names]
    _signed(folder, "apiserver", "/CN=kube-apiserver", f"subjectAltName={','.join(alternatives)}")
    _signed(
        folder,
        "kubelet-client",
        "/O=system:masters/CN=kube-apiserver-kubelet-client",
        "extendedKeyUsage=clientAuth",
    )
    _signed(folder, FRONT_PROXY, f"/CN={FRONT_PROXY}", "extendedKeyUsage=clientAuth")
    _openssl("genrsa", "-out", folder / "sa.key", "2048")
    _openssl("rsa", "-in", folder / "sa.key", "-pubout", "-out", folder / "sa.pub")


def certificate(folder: Path, name: str, host: str) -> tuple[Path, Path]:
    """Key and certificate of a server called ``host``, signed by the CA that :func:`create` made in ``folder``."""
    _signed(folder, name, f"/CN={name}", f"subjectAltName=DNS:{host}")
    return folder / f"{name}.key", folder / f"{name}.crt"


def authority(folder: Path, host: str) -> None:
    """Create another CA in ``folder`` that is called ``host``, with the kind of key that Go's older readers take."""
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    _openssl("genrsa", "-traditional", "-out", folder / "ca.key", "2048")
    _openssl(
        *("req", "-x509", "-new", "-key", folder / "ca.key", "-days", _DAYS, "-subj", f"/CN={host}"),
        *("-addext", f"subjectAltName=DNS:{host}", "-out", folder / "ca.crt"),
    )


def server_certificate(folder: Path, name: str, alternatives: Sequence[str]) -> None:
    """``name.key`` and ``name.crt`` of a server of such names (``DNS:…``, ``IP:…``), signed by the folder's CA."""
    _signed(folder, name, f"/CN={name}", f"subjectAltName={','.join(alternatives)}\nextendedKeyUsage=serverAuth")


def write_users(pki: Path, kubeconfigs: Path, server: str, users: Sequence[User]) -> None:
    """Write a fresh token for each user.

    It is in ``tokens.csv`` for the API server and in ``<file>.kubeconfig`` for the user.

    Kubeconfigs are written as JSON, which is YAML, so that the standard library can read them back.
    """
    rows = []
    authority = base64.b64encode((pki / "ca.crt").read_bytes()).decode()
    for user in users:
        token = secrets.token_hex(16)
        rows.append(f'{token},{user.name},{user.name},"{",".join(user.groups)}"')
        config = kubeconfig({"server": server, "certificate-authority-data": authority}, user.file, token)
        write_private(kubeconfigs / f"{user.file}.kubeconfig", json.dumps(config, indent=1))
    write_private(pki / "tokens.csv", "\n".join(rows) + "\n")


def kubeconfig(cluster: Mapping[str, Any], user: str, token: str) -> dict[str, Any]:
    """Return a kubeconfig for the holder of a token. ``cluster`` names the server and its authority."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "rljob", "cluster": dict(cluster)}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "rljob", "context": {"cluster": "rljob", "user": user}}],
        "current-context": "rljob",
    }


def write_private(path: Path, text: str) -> None:
    """Write a file only its owner can read, from the first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as handle:
        handle.write(text)
