"""Looks after the seals of all jobs: is a status what an operator wrote, and what was it if not?

What this process has read or written of a job it remembers, so a job whose status is as before costs no request. The
first look at a job reads its coordinator's Role.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from rljob_kube.client import Kube
from rljob_kube.errors import ApiError
from rljob_kube.resources import ROLE, Json
from rljob_operator.policies.base.names import account
from rljob_operator.policies.status.seal import annotated, describe_forgery, digest, foreign, operator_part, sealed

TOLD_SECONDS = 3600.0
"""For so long Degraded says that a status was forged."""


class SealBroken(Exception):
    """Somebody else wrote the seal since it was read: another replica leads, and this look is out of date."""


@dataclass(frozen=True)
class _Known:
    """What is known of one job."""

    parts: Mapping[str, bytes]
    """By digest: the operator's part as it was read last, and as it may have become by a write since."""
    seal: tuple[str, ...] = ()
    version: str | None = None
    """The resource version of the Role; None where it has to be read."""


@dataclass(frozen=True)
class Forgery:
    """Fields of a status that hold what no operator wrote."""

    fields: tuple[str, ...]
    truth: Json
    """The operator's part as it should be."""
    known: bool
    """Whether the truth is what an operator wrote last. Else nobody knows that, and it is empty."""


class Seals:
    """The memory of one leadership."""

    def __init__(self, kube: Kube, *, clock: Callable[[], float] = monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._alarms: dict[str, tuple[float, str]] = {}

    async def forgery(self, document: Mapping[str, Any]) -> Forgery | None:
        """What is wrong with the operator's part of this status, as it was read just now; None: an operator wrote it.
        A job that an operator without seals began is taken as it is, and sealed."""
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
        """Before every write of the operator's part: from now on it may be this one. Raises `SealBroken`."""
        known = self._known.get(uid)
        if known is None:
            raise SealBroken("the job was not looked at before")
        coming = digest(status)
        before = next(iter(known.parts))
        self._known[uid] = replace(known, parts={before: known.parts[before], coming: _packed(status)})
        await self._write(namespace, name, uid, tuple(dict.fromkeys((coming, before))))

    async def written(self, document: Mapping[str, Any]) -> None:
        """After it: the object as the server keeps it. A server with an older CRD leaves out what that lacks."""
        meta, part = document["metadata"], operator_part(document)
        uid, found = meta["uid"], digest(part)
        known = self._known.get(uid)
        if known is None:
            return
        self._known[uid] = replace(known, parts={found: known.parts.get(found) or _packed(part)})
        if found not in known.parts:
            await self._write(meta["namespace"], meta["name"], uid, (found,))

    def first(self, uid: str) -> Json:
        """The metadata of a Role that is to be made."""
        known = self._known.get(uid)
        return annotated(known.parts if known is not None else (digest({}),))

    def made(self, uid: str, role: Mapping[str, Any]) -> None:
        """The Role as the server keeps it: made, or mended."""
        known = self._known.get(uid)
        if known is not None:
            version = role["metadata"]["resourceVersion"]
            self._known[uid] = replace(known, seal=sealed(role), version=version)

    async def undone(self, document: Mapping[str, Any], forgery: Forgery) -> None:
        """The object as it is after a forgery was undone, which is told for a while."""
        meta, part = document["metadata"], operator_part(document)
        uid, found = meta["uid"], digest(part)
        self._alarms[uid] = (self._clock(), describe_forgery(forgery.fields, forgery.known))
        self._known[uid] = _Known({found: _packed(part)})
        await self._write(meta["namespace"], meta["name"], uid, (found,))

    def alarm(self, uid: str) -> str | None:
        """What there is to tell of a status that was forged lately."""
        when, message = self._alarms.get(uid, (0.0, ""))
        if message and self._clock() - when > TOLD_SECONDS:
            self._alarms.pop(uid, None)
        return message if uid in self._alarms else None

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._known.pop(uid, None)
        self._alarms.pop(uid, None)

    def _truth(self, uid: str, seal: tuple[str, ...]) -> Json | None:
        """What an operator wrote last, if this process knows it: another one may have written since. Without a seal
        none has."""
        known = self._known.get(uid)
        parts = known.parts if known is not None else {}
        return next((_unpacked(part) for one, part in parts.items() if one in seal or not seal), None)

    async def _read(self, namespace: str, name: str, uid: str) -> tuple[tuple[str, ...], str | None]:
        """The digests on the coordinator's Role, and its version. Without a Role of this very job nobody has the right
        to forge."""
        role = await self._kube.find(ROLE, namespace, account(name))
        if role is None or all(owner["uid"] != uid for owner in role["metadata"].get("ownerReferences") or ()):
            return (), None
        return sealed(role), role["metadata"]["resourceVersion"]

    async def _write(self, namespace: str, name: str, uid: str, digests: tuple[str, ...]) -> None:
        """Put the digests on the coordinator's Role, if there is one. Raises `SealBroken`."""
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
