"""What any protocol method may raise, and nothing else."""

from __future__ import annotations


class PeerError(Exception):
    """Base of everything a protocol method may raise."""


class PeerGone(PeerError):
    """The peer is dead or unreachable for good: its process ended or its machine left."""


class PeerTimeout(PeerError):
    """No answer within the bound of the call. The peer may or may not have acted: every command is idempotent."""


class Refused(PeerError):
    """The peer answered no; the message says why and what would be right."""


class StaleTerm(Refused):
    """The command's term is lower than one the peer has seen: another coordinator is in charge."""


class WrongVersion(Refused):
    """The peer holds another weight version than the command names."""
