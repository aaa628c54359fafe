"""What an audit finds, and what it counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Rule(StrEnum):
    """What is broken."""

    LOST = "lost"
    """A prompt or a response that nobody will train on, and nobody decided so."""
    TWICE = "twice"
    """More than one update was made of it, or could be."""
    GAP = "gap"
    """Updates or draws that do not follow each other."""
    MIXED = "mixed"
    """A trajectory or group of more than one weight version, or of none that is known."""
    UNEQUAL = "unequal"
    """Tokens with holes, or without as many log-probabilities."""
    UNFOUNDED = "unfounded"
    """Something has happened to it without what must come before."""
    DAMAGED = "damaged"
    """The file itself."""


@dataclass(frozen=True, order=True)
class Finding:
    """`key`: a prompt (epoch.index), a trajectory (epoch.index.sample), `update N` or `version N`."""

    rule: Rule
    key: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.key}: {self.what}"


@dataclass(frozen=True)
class AuditResult:
    """`began` and `ended`: the first and the last update that the store knows to be done; of those up to `kept` it has
    sums alone. `prompts`: how many of those
    drawn are where: trained, filtered, requeued (they wait to be drawn again), open. `trajectories` and `tokens`: those
    trained on. `versions`: how many weight versions they are of. `draws`: how often prompts were drawn; `skipped`:
    records that could not be used, which the cursor has passed over."""

    mode: str
    began: int
    ended: int
    kept: int = 0
    prompts: Mapping[str, int] = field(default_factory=dict)
    draws: int = 0
    trajectories: int = 0
    tokens: int = 0
    versions: int = 0
    skipped: int = 0
    findings: tuple[Finding, ...] = ()

    @property
    def lost(self) -> int:
        """Prompts and responses that are lost."""
        return self._count(Rule.LOST)

    @property
    def duplicated(self) -> int:
        """What was trained on twice, or could be."""
        return self._count(Rule.TWICE)

    def _count(self, rule: Rule) -> int:
        return len({finding.key for finding in self.findings if finding.rule is rule})

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "mode": self.mode,
            "began": self.began,
            "ended": self.ended,
            "kept": self.kept,
            "prompts": dict(self.prompts),
            "draws": self.draws,
            "trajectories": self.trajectories,
            "tokens": self.tokens,
            "versions": self.versions,
            "skipped": self.skipped,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "broken": dict(Counter(finding.rule.value for finding in self.findings)),
            "findings": [{"rule": one.rule.value, "key": one.key, "what": one.what} for one in self.findings],
        }
