"""What the coordinator talks to, and the only errors it may hear back.

Production binds these protocols to Ray actors, the simulator to stand-ins under virtual time; one contract suite runs
over both. Bindings hold no decision, timer or retry. Every command carries the coordinator's `term`; a peer that has
seen a higher one answers `StaleTerm`. Every call may raise `PeerGone` (it is dead; ask for a new one), `PeerTimeout`
(no answer in the caller's bound; it may have acted) or `Refused` (it answered no, and why), and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rljob_api import RLJob
from rljob_api.status import Member, RuntimeStatus
from rljob_runtime.scheduling.layouts import Seats
from rljob_runtime.scheduling.reward_figures import RewardFigures
from rljob_runtime.scheduling.reward_timeout import Anchors
from rljob_runtime.scheduling.trajectory import Cursor, FinishReason, Group, PromptKey, Sampling, TrajectoryKey

if TYPE_CHECKING:
    from rljob_runtime.coordinator.loan_protocol import GradientWorker, Handover


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


# --- rollout replica -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GenerateRequest:
    """Generate (or go on with) one trajectory. `prefix_token_ids` were generated before, under the same weight version;
    they count towards `sampling.max_tokens`, and the first new delta has `offset == len(prefix_token_ids)`."""

    key: TrajectoryKey
    attempt: int
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    weight_version: int
    prefix_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Delta:
    """New tokens of one trajectory as they came off the engine, stamped by the replica with the version that made them.
    The last delta of a response carries `finish_reason`; aborted ones end without any."""

    key: TrajectoryKey
    attempt: int
    offset: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: int
    finish_reason: FinishReason | None = None


@dataclass(frozen=True)
class EngineStats:
    """Counters of one engine. `kv_use` is the used share of KV blocks (0 to 1); the totals only grow."""

    running: int
    waiting: int
    kv_use: float
    preemptions_total: int
    generated_tokens_total: int
    prompt_tokens_total: int
    prefix_resets_total: int
    weight_loads_total: int
    aborted_total: int = 0
    """Requests stopped by `abort` before they ended."""
    layouts_built_total: int = 0
    """Engines that were built, one for each layout."""
    layout_switches_total: int = 0
    """Changes from one layout to another, or from none."""
    kv_tokens: int = 0
    """Tokens that the KV cache holds; 0 where the engine cannot tell."""
    max_running: int = 0
    """Most requests that run at a time; 0 where the engine cannot tell."""


@dataclass(frozen=True)
class ReplicaReport:
    """What happened since `after`: poll again with `after=cursor`, which also acknowledges these deltas."""

    boot: str
    """Changes with every start of the replica's process: a new boot has lost all requests."""
    cursor: int
    deltas: tuple[Delta, ...]
    weight_version: int | None
    stats: EngineStats


class Replica(Protocol):
    """One seat of a rollout machine. It outlives layouts: in one it leads an engine of so many accelerators, in another
    it rests while its accelerators work for a seat before it."""

    name: str

    async def make_room(self, term: int, tensor_parallel: int) -> None:
        """Give the accelerators back, unless this layout is the one in force. The requests held are dropped, as by an
        abort, and the weights are gone; the engine is kept asleep."""
        ...

    async def lay_out(self, term: int, tensor_parallel: int) -> None:
        """Generate on so many accelerators from now on; nothing changes if that is so already. All seats of the machine
        have made room. A layout begins without weights. Raises `Refused` with the reason when its engine does not
        start; the seat rests then, and an earlier layout can be had again."""
        ...

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        """Queue requests. A key already held with the same attempt is ignored; a higher attempt replaces it. Raises
        `WrongVersion` (and queues none) when the engine's weights are not `request.weight_version`."""
        ...

    async def abort(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> None:
        """Stop these responses, up to these attempts; what is not held is ignored. After it returns, no further delta
        of these attempts is made, and one that is still on its way here is not begun. A higher attempt goes on: an
        abort that comes late, or twice, harms nobody."""
        ...

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        """Deltas after cursor `after`, waiting up to `wait_seconds` for the first. Unacknowledged ones come again."""
        ...

    async def load(self, term: int, version: int) -> None:
        """Load `version` from this machine's relay segment and reset the prefix cache. Raises `Refused` when requests
        are still held, `WrongVersion` when the relay does not hold that version whole."""
        ...


# --- relay -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RelayMember:
    """One link of the chain."""

    machine: str
    incarnation: int
    host: str
    port: int


@dataclass(frozen=True)
class Chain:
    """Order of the broadcast; members[0] is the master. (epoch, revision) is compared as a pair: lower is refused,
    higher adopted. The operator owns `epoch`, the coordinator raises `revision` at each repair."""

    epoch: int
    revision: int
    members: tuple[RelayMember, ...]


@dataclass(frozen=True)
class RelayStatus:
    """`whole` is the newest committed version; `receiving` the one in flight with `chunks_received` of its chunks.
    `link` says how it stands with the successor: Alone, Connecting, Connected, Lost or Refused, and why in
    `link_detail`; `delivered` is the newest version that the successor was seen to hold whole."""

    machine: str
    host: str
    port: int
    epoch: int
    revision: int
    whole: int | None
    receiving: int | None
    chunks_received: int
    bytes_received_total: int
    commits_total: int
    checksum_failures_total: int
    bytes_sent_total: int = 0
    chunks_resent_total: int = 0
    connections_lost_total: int = 0
    predecessor: str | None = None
    successor: str | None = None
    link: str = "Alone"
    link_detail: str = ""
    delivered: int | None = None


class Relay(Protocol):
    """The relay of one rollout machine."""

    machine: str

    async def status(self, term: int) -> RelayStatus:
        """Where it listens and what it holds."""
        ...

    async def join(self, term: int, chain: Chain) -> None:
        """Adopt this chain: the successor is found in it by machine name. Raises `Refused` for a lower number."""
        ...


# --- trainer ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainerState:
    """After start or restore: `step` updates are done, and the weights in hand are those after `step`."""

    step: int
    restored_from: str | None
    parameters: int
    model_files: dict[str, bytes]
    """config.json, tokenizer files, generation_config.json by name: what a replica needs besides the weights."""


@dataclass(frozen=True)
class TrainReport:
    """Figures of one update, means over the round's loss tokens unless said otherwise."""

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    mismatch_kl: float
    clip_fraction: float
    entropy: float
    tokens: int
    seconds: float
    early_groups: int = 0
    """Groups whose gradients were there already, by `contribute`."""


@dataclass(frozen=True)
class ContributeReport:
    """`groups`: how many groups of the step are in now, 0 when the step is done. `tokens`: loss tokens that this call
    computed, in `seconds`; what was in already is not computed again."""

    step: int
    groups: int
    seconds: float
    tokens: int = 0


@dataclass(frozen=True)
class PublishReport:
    """`stall_seconds`: how long training stood still for the copy into the host buffer."""

    version: int
    nbytes: int
    stall_seconds: float


class Trainer(Protocol):
    """The group of trainer ranks, as one."""

    async def start(self, term: int) -> TrainerState:
        """Load the model or the newest whole checkpoint. Idempotent."""
        ...

    async def contribute(self, term: int, step: int, groups: Sequence[Group]) -> ContributeReport:
        """Compute the raw gradient sums of finished groups of the next step, for `train` to begin with. Idempotent by
        (step, group), also when the step is done; lost with the trainer. Raises `Refused` when `step` is neither the
        last nor the next, or a step has several updates."""
        ...

    async def open_desks(self, term: int, count: int) -> tuple[RelayMember, ...]:
        """Where so many lent machines bring the sums of the next step, each its own, as contribution 1, 2, …; empty,
        and open until its update."""
        ...

    async def accept(self, term: int, handover: Handover, groups: Sequence[Group]) -> ContributeReport:
        """Add what a lent machine brought, whole and once; `groups` are those that it summed. Raises `Refused`, with
        nothing changed, for another term, step or version than those in hand, and for groups that are in already."""
        ...

    async def train(self, term: int, step: int, groups: Sequence[Group]) -> TrainReport:
        """The update that leads from `step - 1` to `step`. `groups` are all of the step's: those contributed before
        are not computed again, unless one of them is not named or has other contents; then none of them counts.
        Idempotent by step: a step already done answers its report again. Raises `Refused` when `step` is not the
        next."""
        ...

    async def publish(self, term: int, version: int, step: int, chain: Chain) -> PublishReport:
        """Copy the weights after `step` into the host buffer, return, and ship them to the chain's master in the
        background. Publishing a version again re-ships it to the chain now given. Raises `Refused` when other weights
        are in hand: a call that waited for an update must not give them an older number."""
        ...

    async def checkpoint(self, term: int, step: int) -> str:
        """Write everything of this step atomically; returns the checkpoint's folder name. Raises `Refused` (disk full,
        another step) with the previous checkpoint untouched."""
        ...

    async def export(self, term: int) -> str:
        """Write the final model as a Hugging Face folder; returns its path."""
        ...


# --- rewards ---------------------------------------------------------------------------------------------------------


class RewardFailed(PeerError):
    """Our failure (raised, hung, returned no finite number), not the response's: the sample is aborted, never a
    zero."""


class RewardsNotUsable(Exception):
    """A reward cannot be loaded: the message says which and why. Ends the job."""


class RewardsUnavailable(Exception):
    """What a reward needs is not there now; it may come, so the job waits. `reason` is one word for programs."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Rewards(Protocol):
    """Scores responses asynchronously while rollouts go on."""

    async def score(self, prompt: object, response_text: str) -> float:
        """`prompt` is the `rljob_runtime.data.Prompt` drawn. A finite number, or `RewardFailed`."""
        ...

    def figures(self) -> RewardFigures:
        """Totals so far."""
        ...

    def take_anchors(self) -> Anchors:
        """The anchors of adaptive timeouts that rose since the last call."""
        ...

    def restore_anchors(self, anchors: Anchors) -> None:
        """Go on with these, in place of those held."""
        ...


# --- prompts ---------------------------------------------------------------------------------------------------------


class PromptsNotUsable(Exception):
    """The prompts cannot be read: the message says where and what would be right. Ends the job."""


class PromptRecord(Protocol):
    """What the coordinator needs of a prompt; `rljob_runtime.data.Prompt` is one."""

    @property
    def token_ids(self) -> Sequence[int]: ...


class PromptSource(Protocol):
    """The data set with the model's tokenizer. Pure: the same seed and cursor draw the same prompts."""

    def draw(self, cursor: Cursor, count: int) -> tuple[tuple[PromptKey, ...], Cursor]:
        """The next `count` prompts and the cursor after them; goes on into the next epoch."""
        ...

    def prompt(self, key: PromptKey) -> PromptRecord:
        """A prompt that was drawn."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """A response as text, special tokens left out: what rewards see."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens at which generation ends."""
        ...

    @property
    def skipped(self) -> int:
        """Records that could not be used and were skipped."""
        ...


# --- where peers come from -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RolloutMachine:
    """The actors of one rollout machine: its relay, and a seat for each `accelerators_per_seat` of its accelerators."""

    member: Member
    relay: Relay
    seats: tuple[Replica, ...]
    accelerators_per_seat: int = 1
    worker: GradientWorker | None = None
    """None where the machine cannot be lent to training."""

    def leading(self, tensor_parallel: int) -> tuple[Replica, ...]:
        """The seats that generate in this layout. Raises `Refused` where it does not fit the machine."""
        each = self.accelerators_per_seat
        try:
            return tuple(self.seats[index] for index in Seats(len(self.seats) * each, each).leading(tensor_parallel))
        except ValueError as error:
            raise Refused(f"{self.member.machine}: {error}") from error


class Binding(Protocol):
    """Finds or makes the actors on a machine that has joined. Names are deterministic, so a coordinator that comes back
    finds the ones that lived on."""

    async def trainer(self, term: int, members: Sequence[Member]) -> Trainer:
        """The trainer group over these pods."""
        ...

    async def rollout_machine(self, term: int, member: Member, model_files: dict[str, bytes]) -> RolloutMachine:
        """Relay and seats of one machine, whatever layout they are in; `PeerTimeout` when it has not joined within the
        bound."""
        ...

    async def release(self, member: Member) -> None:
        """End a machine's actors. Never raises for one that is gone."""
        ...


class ControlPlane(Protocol):
    """The operator, as the coordinator sees it: a job to follow and a place to report to."""

    async def observe(self) -> Job:
        """The newest known job; never blocks longer than one API call."""
        ...

    async def wait_changed(self, seconds: float) -> None:
        """Return when the job changed, or after `seconds`."""
        ...

    async def report(self, status: RuntimeStatus) -> None:
        """Apply `status.runtime`. Raises `PeerTimeout` when the API cannot be reached; the caller tries again later."""
        ...


@dataclass(frozen=True)
class Job:
    """A consistent view of the RLJob as the API server holds it."""

    job: RLJob
    """Spec and the operator's part of the status."""
    resource_version: str
