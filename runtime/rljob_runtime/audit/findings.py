"""Findings: violations and counts of an audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Rule(StrEnum):
    """The violated rule."""

    LOST = "lost"
    """A prompt or response that will not be trained on, without a decision."""
    TWICE = "twice"
    """Used in more than one update, or usable in several."""
    GAP = "gap"
    """Updates or draws that are not consecutive."""
    MIXED = "mixed"
    """A trajectory or group of several weight versions, or of an unknown one."""
    UNEQUAL = "unequal"
    """Tokens with gaps, or with another number of log-probabilities."""
    UNFOUNDED = "unfounded"
    """A state without its precondition."""
    SHARE = "share"
    """A round that trained on more or less of a prompt source than its share, or draws that do not have the shares."""
    LINEAGE = "lineage"
    """A trained token that no engine emitted, or one of an attempt that does not count."""
    DAMAGED = "damaged"
    """The file itself is damaged."""


@dataclass(frozen=True, order=True)
class Finding:
    """A violation. `key`: a prompt (epoch.index), a trajectory (epoch.index.sample), `update N` or `version N`.

    Keys of a named source begin with `source/`."""

    rule: Rule
    key: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.key}: {self.what}"


@dataclass(frozen=True)
class EpisodeCounts:
    """Episodes of the remaining updates.

    `attempts`: by state. `proved`: trained responses whose tokens, log-probabilities and version are those of one
    attempt, with their `turns` and sampled `tokens`. `unproved`: trained tokens of other responses."""

    attempts: Mapping[str, int] = field(default_factory=dict)
    proved: int = 0
    turns: int = 0
    tokens: int = 0
    unproved: int = 0


@dataclass(frozen=True)
class AuditResult:
    """Result of an audit.

    `began` and `ended`: first and last closed update in the store; up to `kept` there are sums only.

    `prompts`: number of drawn prompts by state: trained, filtered, requeued, open. `trajectories` and `tokens`: those
    trained on. `versions`: number of their weight versions. `draws`: number of draws; `skipped`: unusable records that
    the cursor has passed. `episodes`: None for a job without any."""

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
    episodes: EpisodeCounts | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def lost(self) -> int:
        """Lost prompts and responses."""
        return self._count(Rule.LOST)

    @property
    def duplicated(self) -> int:
        """Prompts and responses trained on twice, or usable twice."""
        return self._count(Rule.TWICE)

    def _count(self, rule: Rule) -> int:
        return len({finding.key for finding in self.findings if finding.rule is rule})

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
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
            **({"episodes": asdict(self.episodes)} if self.episodes is not None else {}),
            "lost": self.lost,
            "duplicated": self.duplicated,
            "broken": dict(Counter(finding.rule.value for finding in self.findings)),
            "findings": [{"rule": one.rule.value, "key": one.key, "what": one.what} for one in self.findings],
        }
