"""Seals: checks that the operator's part of a status is what an operator wrote, and knows what it was.

This process remembers what it has read and written of each job, so an unchanged status costs no request. The first
check of a job reads its coordinator's Role.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from rljob_kube.client import KubeClient
from rljob_kube.errors import ApiError
from rljob_kube.manifests.metadata import Annotated
from rljob_kube.resources import ROLE, Json
from rljob_operator.policies.base.names import account
from rljob_operator.policies.status.seal import (
    annotated,
    describe_forgery,
    digest,
    foreign,
    is_reported,
    operator_part,
    sealed,
)


class SealBroken(Exception):
    """The seal was changed since it was read: another replica leads, and this reconcile is outdated."""


@dataclass(frozen=True)
class _Known:
    """What is known of one job."""

    parts: Mapping[str, bytes]
    """By digest: the operator's part as read last, and as it may have become by a write since."""
    seal: tuple[str, ...] = ()
    version: str | None = None
    """Resource version of the Role; None where it has to be read."""


@dataclass(frozen=True)
class Forgery:
    """Fields of a status that no operator wrote."""

    fields: tuple[str, ...]
    truth: Json
    """The operator's part as it should be."""
    known: bool
    """Whether `truth` is what an operator wrote last. Else that is unknown, and `truth` is empty."""


class Seals:
    """Seals of all jobs during one leadership."""

    def __init__(self, kube: KubeClient, *, clock: Callable[[], float] = monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._alarms: dict[str, tuple[float, str]] = {}

    async def forgery(self, document: Mapping[str, Any]) -> Forgery | None:
        """Find foreign fields in the operator's part of a status. None: an operator wrote all of it.

        A job that an operator without seals started is accepted as it is, and sealed.
        """
        meta, part = document["metadata"], operator_part(document)
        uid, found = meta["uid"], digest(part)
        known = self._known.get(uid)
        if known is not None and found in known.parts:
            self._known[uid] = replace(known, parts={found: known.parts[found]})
            return None
        if known is None and not document.get("status"):
            self._known[uid] = _Known({found: _packed(part)})
            return None
        seal, version = await self._read(meta["namespace"], meta["name"], uid)
        truth = self._truth(uid, seal)
        if (seal or truth) and found not in seal:
            return Forgery(foreign(part, truth or {}), truth or {}, truth is not None)
        self._known[uid] = _Known({found: _packed(part)}, seal, version)
        if version is not None and not seal:
            await self._write(meta["namespace"], meta["name"], uid, (found,))
        return None

    async def announce(self, namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> None:
        """Add the digest of a status before it is written. Raises `SealBroken`."""
        known = self._known.get(uid)
        if known is None:
            raise SealBroken("the job was not read before")
        coming = digest(status)
        before = next(iter(known.parts))
        self._known[uid] = replace(known, parts={before: known.parts[before], coming: _packed(status)})
        await self._write(namespace, name, uid, tuple(dict.fromkeys((coming, before))))

    async def written(self, document: Mapping[str, Any]) -> None:
        """Record the object as the server stored it.

        A server with an older CRD drops the fields that it does not know.
        """
        meta, part = document["metadata"], operator_part(document)
        uid, found = meta["uid"], digest(part)
        known = self._known.get(uid)
        if known is None:
            return
        self._known[uid] = replace(known, parts={found: known.parts.get(found) or _packed(part)})
        if found not in known.parts:
            await self._write(meta["namespace"], meta["name"], uid, (found,))

    def first(self, uid: str) -> Annotated:
        """Return the metadata of a Role that is to be created."""
        known = self._known.get(uid)
        return annotated(known.parts if known is not None else (digest({}),))

    def made(self, uid: str, role: Mapping[str, Any]) -> None:
        """Record a Role as the server stored it."""
        known = self._known.get(uid)
        if known is not None:
            version = role["metadata"]["resourceVersion"]
            self._known[uid] = replace(known, seal=sealed(role), version=version)

    async def undone(self, document: Mapping[str, Any], forgery: Forgery) -> None:
        """Record the object after a forgery was undone. The forgery is reported for a while."""
        meta, part = document["metadata"], operator_part(document)
        uid, found = meta["uid"], digest(part)
        self._alarms[uid] = (self._clock(), describe_forgery(forgery.fields, forgery.known))
        self._known[uid] = _Known({found: _packed(part)})
        await self._write(meta["namespace"], meta["name"], uid, (found,))

    def alarm(self, uid: str) -> str | None:
        """Describe a recent forgery; None without one."""
        when, message = self._alarms.get(uid, (0.0, ""))
        if message and not is_reported(self._clock() - when):
            self._alarms.pop(uid, None)
        return message if uid in self._alarms else None

    def forget(self, uid: str) -> None:
        """Drop a deleted job."""
        self._known.pop(uid, None)
        self._alarms.pop(uid, None)

    def _truth(self, uid: str, seal: tuple[str, ...]) -> Json | None:
        """Return what an operator wrote last, if this process knows it.

        Another operator may have written since. Without a seal none has.
        """
        known = self._known.get(uid)
        parts = known.parts if known is not None else {}
        return next((_unpacked(part) for one, part in parts.items() if one in seal or not seal), None)

    async def _read(self, namespace: str, name: str, uid: str) -> tuple[tuple[str, ...], str | None]:
        """Read the digests on the coordinator's Role, and its version.

        Without a Role of this job, no client has the right to forge.
        """
        role = await self._kube.find(ROLE, namespace, account(name))
        if role is None or all(owner["uid"] != uid for owner in role["metadata"].get("ownerReferences") or ()):
            return (), None
        return sealed(role), role["metadata"]["resourceVersion"]

    async def _write(self, namespace: str, name: str, uid: str, digests: tuple[str, ...]) -> None:
        """Write the digests to the coordinator's Role, if there is one. Raises `SealBroken`."""
        known = self._known[uid]
        if known.version is None:
            seal, version = await self._read(namespace, name, uid)
            known = self._known[uid] = replace(known, seal=seal, version=version)
        if known.version is None or known.seal == digests:
            return
        body = {"metadata": {"resourceVersion": known.version, **annotated(digests)}}
        try:
            role = await self._kube.merge(ROLE, namespace, account(name), body)
        except ApiError as error:
            self._known.pop(uid, None)
            if error.conflict or error.not_found:
                raise SealBroken(f"the Role of the coordinator changed meanwhile: {error.message}") from error
            raise
        self.made(uid, role)


def _packed(part: Mapping[str, Any]) -> bytes:
    return zlib.compress(json.dumps(part).encode(), 1)


def _unpacked(part: bytes) -> Json:
    found: Json = json.loads(zlib.decompress(part))
    return found
