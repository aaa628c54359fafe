"""Stand-ins for the peers of the coordinator. They do no work, but keep the protocols to the letter: terms, leases,
cursors, idempotence, refusals. They run in-process under virtual time, and in Ray actors under the contract suite.

Tokens are a function of (seed, position), lengths one of the trajectory: whoever generates, however often, the sum
comes out the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_runtime.coordinator.protocols import (
    Chain,
    Delta,
    EngineStats,
    GenerateRequest,
    PublishReport,
    Refused,
    RelayStatus,
    ReplicaReport,
    RewardFailed,
    StaleTerm,
    TrainerState,
    TrainReport,
    WrongVersion,
)
from rljob_runtime.scheduling.trajectory import Cursor, FinishReason, Group, PromptKey, TrajectoryKey


def digest(*parts: object) -> int:
    """A number that depends on the parts and on nothing else."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest(), "big")


class _Office:
    """Refuses commands of a former coordinator."""

    def __init__(self) -> None:
        self._term = 0

    def check(self, term: int) -> None:
        if term < self._term:
            raise StaleTerm(f"term {term} is over: {self._term} is in office")
        self._term = term


@dataclass
class Weights:
    """What a relay holds; shared by the relay and the replicas of a machine, as shared memory is."""

    whole: int | None = None
    content: int = 0


class SimulatedRelay:
    """A relay: `receive` is its socket."""

    def __init__(self, machine: str, weights: Weights | None = None, network: Network | None = None) -> None:
        self.machine = machine
        self.weights = weights or Weights()
        self.chain: Chain | None = None
        self._office = _Office()
        self._network = network
        self._bytes = 0
        self._commits = 0

    async def status(self, term: int) -> RelayStatus:
        self._office.check(term)
        epoch, revision = (self.chain.epoch, self.chain.revision) if self.chain else (0, 0)
        return RelayStatus(
            self.machine, self.machine, 1, epoch, revision, self.weights.whole, None, 0, self._bytes, self._commits, 0
        )

    async def join(self, term: int, chain: Chain) -> None:
        self._office.check(term)
        if self.chain is not None and (chain.epoch, chain.revision) < (self.chain.epoch, self.chain.revision):
            raise Refused(f"chain ({chain.epoch}, {chain.revision}) is older than the one in force")
        self.chain = chain
        # A predecessor that holds something whole feeds its successor when it meets it.
        if self._network is not None and self.weights.whole is not None:
            self._network.forward(self)

    def receive(self, version: int, content: int, nbytes: int) -> None:
        """A whole version came in."""
        if self.weights.whole is not None and version < self.weights.whole:
            return
        self.weights.whole, self.weights.content = version, content
        self._bytes += nbytes
        self._commits += 1

    def successor(self) -> str | None:
        """The machine it feeds."""
        names = [member.machine for member in self.chain.members] if self.chain else []
        if self.machine not in names or self.machine == names[-1]:
            return None
        return names[names.index(self.machine) + 1]


class Network:
    """Carries weights from relay to relay, a hop in `hop_seconds`. Notices a version number used for two contents."""

    def __init__(self, hop_seconds: float = 0.2) -> None:
        self.hop_seconds = hop_seconds
        self.relays: dict[str, SimulatedRelay] = {}
        self.contents: dict[int, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ship(self, machine: str, version: int, content: int) -> None:
        """Weights are on their way to a machine, and from there along the chain."""
        if self.contents.setdefault(version, content) != content:
            raise AssertionError(f"version {version} was published with two contents")
        task = asyncio.get_running_loop().create_task(self._carry(machine, version, content))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forward(self, relay: SimulatedRelay) -> None:
        """Feed the successor with what this relay holds."""
        successor, version = relay.successor(), relay.weights.whole
        if successor is not None and version is not None:
            self.ship(successor, version, relay.weights.content)

    async def _carry(self, machine: str, version: int, content: int) -> None:
        await asyncio.sleep(self.hop_seconds)
        relay = self.relays.get(machine)
        if relay is None or (relay.weights.whole or 0) >= version:
            return
        relay.receive(version, content, 1)
        self.forward(relay)


@dataclass
class _Request:
    request: GenerateRequest
    made: int
    length: int
    due: float


class SimulatedReplica:
    """An engine that makes one token of every request each `token_seconds`."""

    def __init__(
        self,
        name: str,
        weights: Weights | None = None,
        token_seconds: float = 0.02,
        loaded: int | None = None,
        boot: str = "0",
    ) -> None:
        self.name = name
        self.held: dict[TrajectoryKey, _Request] = {}
        self._weights = weights or Weights(whole=loaded)
        self._loaded = loaded
        self._boot = boot
        self._token_seconds = token_seconds
        self._office = _Office()
        self._outbox: list[tuple[int, Delta]] = []
        self._numbers = itertools.count(1)
        self._acknowledged = 0
        self._generated = 0
        self._loads = 0

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        self._office.check(term)
        wrong = [request for request in requests if request.weight_version != self._loaded]
        if wrong:
            raise WrongVersion(f"{self.name} holds version {self._loaded}, not {wrong[0].weight_version}")
        for request in requests:
            held = self.held.get(request.key)
            if held is not None and held.request.attempt >= request.attempt:
                continue
            length = 1 + digest("length", request.key) % request.sampling.max_tokens
            now = asyncio.get_running_loop().time()
            self.held[request.key] = _Request(request, len(request.prefix_token_ids), length, now + self._token_seconds)

    async def abort(self, term: int, keys: Sequence[TrajectoryKey]) -> None:
        self._office.check(term)
        for key in keys:
            self.held.pop(key, None)

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        self._office.check(term)
        self._outbox = [(number, delta) for number, delta in self._outbox if number > after]
        deadline = asyncio.get_running_loop().time() + wait_seconds
        while True:
            self._advance()
            now = asyncio.get_running_loop().time()
            if self._outbox or now >= deadline:
                break
            await asyncio.sleep(min(deadline - now, self._token_seconds))
        cursor = self._outbox[-1][0] if self._outbox else after
        return ReplicaReport(self._boot, cursor, tuple(delta for _, delta in self._outbox), self._loaded, self._stats())

    async def load(self, term: int, version: int) -> None:
        self._office.check(term)
        if self.held:
            raise Refused(f"{self.name} still holds {len(self.held)} requests")
        if self._weights.whole != version:
            raise WrongVersion(f"the relay holds version {self._weights.whole}, not {version}")
        self._loaded = version
        self._loads += 1

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        for key, held in list(self.held.items()):
            new = int((now - held.due) / self._token_seconds) + 1 if now >= held.due else 0
            new = min(new, max(held.length - held.made, 0))
            # A prefix that is whole already ends at once, with an empty last delta.
            done = held.made + new >= held.length
            if new == 0 and not done:
                continue
            request = held.request
            seed = request.sampling.seed
            tokens = tuple(digest(seed, place) % 97 for place in range(held.made, held.made + new))
            delta = Delta(
                key=key,
                attempt=request.attempt,
                offset=held.made,
                token_ids=tokens,
                logprobs=tuple(-token / 97 for token in tokens),
                weight_version=request.weight_version,
                finish_reason=FinishReason.STOP if done else None,
            )
            self._outbox.append((next(self._numbers), delta))
            self._generated += new
            held.made += new
            held.due += new * self._token_seconds
            if done:
                del self.held[key]

    def _stats(self) -> EngineStats:
        return EngineStats(
            len(self.held), 0, min(1.0, len(self.held) / 64), 0, self._generated, 0, self._loads, self._loads
        )


@dataclass
class TrainerDisk:
    """What outlives the trainer's process: checkpoints, each the history of ids trained on up to its step."""

    checkpoints: dict[int, tuple[tuple[str, ...], ...]] = field(default_factory=lambda: {0: ()})
    full: bool = False


class SimulatedTrainer:
    """A trainer whose weights are the history of what it was trained on."""

    def __init__(
        self,
        disk: TrainerDisk | None = None,
        network: Network | None = None,
        step_seconds: float = 2.0,
        publish_seconds: float = 0.0,
    ) -> None:
        self._disk = disk or TrainerDisk()
        self._network = network
        self._step_seconds = step_seconds
        self._publish_seconds = publish_seconds
        self.publishing: int | None = None
        self._office = _Office()
        self._step = max(self._disk.checkpoints)
        self.history = self._disk.checkpoints[self._step]
        self._restored = f"step-{self._step}" if self._step else None
        self._published: dict[int, int] = {}

    async def start(self, term: int) -> TrainerState:
        self._office.check(term)
        return TrainerState(self._step, self._restored, 1, {"config.json": b"{}"})

    async def train(self, term: int, step: int, groups: Sequence[Group]) -> TrainReport:
        self._office.check(term)
        if step not in (self._step, self._step + 1):
            raise Refused(f"step {step} is not the next: {self._step} are done")
        if step == self._step + 1:
            await asyncio.sleep(self._step_seconds)
            ids = tuple(str(scored.response.key) for group in groups for scored in group.responses)
            self.history = (*self.history, ids)
            self._step = step
        tokens = sum(len(scored.response.token_ids) for group in groups for scored in group.responses)
        return TrainReport(step, 0.0, 1.0, 1e-3, 0.0, 0.0, 1.0, tokens, self._step_seconds)

    async def publish(self, term: int, version: int, chain: Chain) -> PublishReport:
        self._office.check(term)
        content = self._published.setdefault(version, digest(self.history))
        self.publishing = version
        await asyncio.sleep(self._publish_seconds)
        self.publishing = None
        if self._network is not None and chain.members:
            self._network.ship(chain.members[0].machine, version, content)
        return PublishReport(version, 1, 0.0)

    async def checkpoint(self, term: int, step: int) -> str:
        self._office.check(term)
        if step != self._step:
            raise Refused(f"step {step} is not at hand: {self._step} is")
        if self._disk.full:
            raise Refused("no space left on the checkpoint volume")
        self._disk.checkpoints[step] = self.history
        return f"step-{step}"

    async def export(self, term: int) -> str:
        self._office.check(term)
        return "/var/lib/rljob/checkpoints/model"


class SimulatedRewards:
    """Scores by the text alone, after a while; fails for the responses that `fails` names, as often as it says."""

    def __init__(self, seconds: float = 0.1, fails: dict[str, int] | None = None) -> None:
        self._seconds = seconds
        self._fails = fails if fails is not None else {}

    async def score(self, prompt: object, response_text: str) -> float:
        await asyncio.sleep(self._seconds)
        name = str(getattr(prompt, "key", prompt))
        if self._fails.get(name, 0) > 0:
            self._fails[name] -= 1
            raise RewardFailed(f"the reward of {name} raised")
        return digest(response_text) % 1000 / 1000


@dataclass(frozen=True)
class SimulatedPrompt:
    """A prompt whose content is its key."""

    key: PromptKey
    token_ids: tuple[int, ...]


class SimulatedPrompts:
    """`size` prompts an epoch, in order."""

    stop_token_ids: tuple[int, ...] = ()
    skipped = 0

    def __init__(self, size: int = 1000) -> None:
        self._size = size

    def draw(self, cursor: Cursor, count: int) -> tuple[tuple[PromptKey, ...], Cursor]:
        first = cursor.epoch * self._size + cursor.position
        keys = tuple(PromptKey(*divmod(place, self._size)) for place in range(first, first + count))
        return keys, Cursor(*divmod(first + count, self._size))

    def prompt(self, key: PromptKey) -> SimulatedPrompt:
        return SimulatedPrompt(key, (key.index % 97, 1, 2))

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))
