"""What a generation stage counts, or what goes on between two updates."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from rljob_runtime.protocols import ReplicaReport


@dataclass
class GenerationStats:
    """What a stage counted, for the round's report."""

    tokens: int = 0
    preemptions: int = 0
    kv_use: float = 0.0
    fullness: float = 0.0
    """The most that a replica did of what it can do at once."""
    aborted_samples: int = 0
    aborted_responses: int = 0
    lost_tokens: int = 0
    """Tokens of responses that were generated anew from nothing, or whose groups are not trained on."""
    lost_version_tokens: int = 0
    """Of these, of groups whose weights nobody holds any more."""
    drawn_prompts: int = 0
    filtered_groups: int = 0
    unscored_groups: int = 0
    """Of these, given up because a reward failed."""
    requeued_prompts: int = 0
    repacks: int = 0
    """Replicas that were emptied onto others."""
    moved_responses: int = 0
    """That went on at another replica."""
    rewards: int = 0
    reward_seconds: float = 0.0
    """Of all `rewards`, from the end of a response."""
    _preempted: dict[tuple[str, str], int] = field(default_factory=dict)

    def note(self, replica: str, report: ReplicaReport) -> None:
        """Engine counters only grow over an engine's life; a round's share is what they grew by."""
        life, total = (replica, report.boot), report.stats.preemptions_total
        self.preemptions += total - self._preempted.get(life, total)
        self._preempted[life] = total
        self.kv_use = max(self.kv_use, report.stats.kv_use)
        self.fullness = max(self.fullness, report.stats.fullness)

    def take(self) -> GenerationStats:
        """What was counted since this was asked last; counting goes on from zero."""
        taken = replace(self)
        for one in fields(self):
            if not one.name.startswith("_"):
                setattr(self, one.name, one.default)
        return taken
