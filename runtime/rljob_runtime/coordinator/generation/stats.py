"""Generation statistics: counters of one generation stage, or of the time between two updates."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from rljob_runtime.protocols import ReplicaReport


@dataclass
class GenerationStats:
    """Counters for the report of a round or an update."""

    tokens: int = 0
    preemptions: int = 0
    kv_use: float = 0.0
    fullness: float = 0.0
    """The highest used share of a replica: see `EngineStats.fullness`."""
    aborted_samples: int = 0
    aborted_responses: int = 0
    recovered_tokens: int = 0
    """Tokens that the last poll of stopped replicas brought."""
    lost_tokens: int = 0
    """Tokens of responses that were regenerated from scratch, or whose groups are not trained on."""
    lost_version_tokens: int = 0
    """Of these, tokens of groups whose weights no relay holds any more."""
    drawn_prompts: int = 0
    filtered_groups: int = 0
    unscored_groups: int = 0
    """Of these, groups that were filtered because a reward failed."""
    environment_failed_groups: int = 0
    """Of these, groups that were filtered because an environment failed."""
    requeued_prompts: int = 0
    repacks: int = 0
    """Replicas that were emptied onto others."""
    moved_responses: int = 0
    """Responses that continued at another replica."""
    rewards: int = 0
    reward_seconds: float = 0.0
    """Seconds from the end of a response to its reward, summed over `rewards`."""
    _preempted: dict[tuple[str, str], int] = field(default_factory=dict)

    def record(self, replica: str, report: ReplicaReport) -> None:
        """Record a poll. An engine's counters only grow, so that the stage counts their growth."""
        engine, total = (replica, report.boot), report.stats.preemptions_total
        self.preemptions += total - self._preempted.get(engine, total)
        self._preempted[engine] = total
        self.kv_use = max(self.kv_use, report.stats.kv_use)
        self.fullness = max(self.fullness, report.stats.fullness)

    def drain(self) -> GenerationStats:
        """Return the counters since the last call, and reset them."""
        drained = replace(self)
        for one in fields(self):
            if not one.name.startswith("_"):
                setattr(self, one.name, one.default)
        return drained
