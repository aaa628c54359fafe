"""Peer errors: all that a protocol method may raise."""

from __future__ import annotations


class PeerError(Exception):
    """Base class of all errors that a protocol method may raise."""


class PeerGone(PeerError):
    """The peer is dead or permanently unreachable: its process ended or its machine left."""


class PeerTimeout(PeerError):
    """The peer did not answer in time. It may have acted: every command is idempotent."""


class Refused(PeerError):
    """The peer refused the command; the message says why, and what would be right."""


class FunctionFailed(Refused):
    """A function of the user cannot be loaded, raises, or returns what cannot be used. Another try gives the same."""


class VolumeFull(Refused):
    """The peer's volume has no room for what the command writes. After files are deleted, another try may succeed."""


class StaleTerm(Refused):
    """The command's term is lower than one that the peer has seen: a later coordinator has the term."""


class WrongVersion(Refused):
    """The peer holds another weight version than the command names."""
