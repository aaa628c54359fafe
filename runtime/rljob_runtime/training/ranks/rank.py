"""One rank of the trainer, from start to export. Rank 0 alone writes files and ships weights; the others take part in
its collectives. All methods are plain and blocking, one at a time, and every rank gets the same calls in the same
order (`group.py` sees to it)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rljob_runtime.models.errors import ModelError
from rljob_runtime.models.source import resolve
from rljob_runtime.protocols import (
    Chain,
    ContributeReport,
    ContributionReceipt,
    PublishReport,
    Refused,
    RelayMember,
    TermFence,
    TrainerState,
    TrainReport,
)
from rljob_runtime.relay.slot import SegmentError
from rljob_runtime.training.batch.delivery import Delivery, Progress, Shares
from rljob_runtime.training.checkpoint import rng_state, state
from rljob_runtime.training.checkpoint.export import write_model
from rljob_runtime.training.checkpoint.model_fingerprint import ModelIdentity
from rljob_runtime.training.checkpoint.store import CheckpointError, CheckpointStore
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.loans.intake import ContributionInboxes, check_standing, contribution_of, read_whole
from rljob_runtime.training.model.attention import UnsupportedModel
from rljob_runtime.training.model.capacity import check_fits
from rljob_runtime.training.model.memory import computes_again
from rljob_runtime.training.model.optimizer import MasterOptimizer, NonFiniteGradient, round_parameters
from rljob_runtime.training.model.policy import Policy
from rljob_runtime.training.model.pretrained import load_model
from rljob_runtime.training.model.sharding import RankGroup, open_rendezvous, walk_through
from rljob_runtime.training.step.learner import Learner

if TYPE_CHECKING:
    from rljob_api.spec import RLJobSpec

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class TrainerSettings:
    """What a rank needs to know besides its number."""

    training: TrainingConfig
    model_source: str
    cache_folder: Path
    """Where a model that is not a folder already is unpacked to."""
    checkpoint_folder: Path
    export_folder: Path
    keep_checkpoints: int = 2
    device: str = "cpu"
    longest: int | None = None
    """Tokens of the longest sequence that will be trained on: a prompt and a response. None for any."""
    step_tokens: int = 0
    """The most that a step can have; 0 where nobody says."""
    early: bool = False
    """Whether every step is given groups before its update."""

    @classmethod
    def from_spec(cls, spec: RLJobSpec, *, volume: Path, cache_folder: Path, device: str = "cpu") -> TrainerSettings:
        """Of a job whose checkpoint volume is mounted at `volume`."""
        algorithm, data = spec.algorithm, spec.data
        group = data.max_prompt_tokens + algorithm.responses_per_prompt * data.max_response_tokens
        return cls(
            training=TrainingConfig.from_spec(spec),
            model_source=spec.model.source,
            cache_folder=cache_folder,
            checkpoint_folder=volume / "checkpoints",
            export_folder=volume / "model",
            keep_checkpoints=spec.checkpoint.keep,
            device=device,
            longest=data.max_prompt_tokens + data.max_response_tokens,
            step_tokens=algorithm.prompts_per_round * group,
            early=spec.stream_training.enabled is True,
        )


class WeightPublisher(Protocol):
    """How weights leave the trainer: `rljob_runtime.relay.publisher.Publisher`."""

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> PublishReport:
        """Copy into the host buffer and return. A sharded tensor is made whole, in the order of `tensors`: a
        collective."""
        ...

    def ship(self, term: int, chain: Chain) -> None:
        """Feed the chain's master with the newest version."""
        ...

    def close(self) -> None:
        """End shipping."""
        ...


@dataclass
class _Session:
    """A started rank."""

    ranks: RankGroup
    learner: Learner
    identity: ModelIdentity
    model_files: dict[str, bytes]
    position: state.Position
    restored_from: str | None
    kept: tuple[int, str | None]
    """The newest checkpoint's step, and the coordinator's document in it."""
    publisher: WeightPublisher | None
    """Rank 0's."""
    published: tuple[int, int] | None = None
    """(version, step) that the publisher's buffer holds. Known to all ranks: they must agree on who gathers."""

    @property
    def optimizer(self) -> MasterOptimizer:
        return self.learner.optimizer

    def hand_over(self, version: int, *, again: bool) -> PublishReport:
        """Give the weights in hand to the publisher (rank 0)."""
        assert self.publisher is not None, "rank 0 publishes"
        try:
            return self.publisher.publish(version, {} if again else self.optimizer.compute)
        except Exception:
            if not again:  # it refuses before it gathers, and the other ranks gather
                self.take_part()
            raise

    def take_part(self, *, again: bool = False) -> None:
        """Help rank 0 to gather the weights in hand, unless it has them from before."""
        if not again:
            walk_through(self.optimizer.compute)


class TrainerRank:
    """Rank `rank` of `size`. Raises only the protocol's errors (`Refused`, `StaleTerm`)."""

    def __init__(
        self,
        settings: TrainerSettings,
        make_publisher: Callable[[], WeightPublisher],
        *,
        rank: int = 0,
        size: int = 1,
        make_inboxes: Callable[[], ContributionInboxes] | None = None,
    ):
        self.settings = settings
        self.rank = rank
        self.size = size
        self._make_publisher = make_publisher
        self._make_inboxes = make_inboxes
        self._inboxes: ContributionInboxes | None = None
        self._store = CheckpointStore(settings.checkpoint_folder, settings.keep_checkpoints)
        self._fence = TermFence("this trainer")
        self._meeting: TCPStore | None = None
        self._started: _Session | None = None

    def rendezvous(self, term: int, host: str) -> int:
        """Rank 0 of several: open the ranks' meeting point on `host`; returns its port."""
        self._fence.check(term)
        if self._meeting is None:
            self._meeting = open_rendezvous(host, self.size)
        return int(self._meeting.port)

    def start(self, term: int, host: str = "", port: int = 0) -> TrainerState:
        """Load the model or the newest whole checkpoint, joining the other ranks at rank 0's meeting point.
        Idempotent."""
        self._fence.check(term)
        if self._started is None:
            try:
                self._started = self._start(host, port)
            except (UnsupportedModel, ModelError, CheckpointError) as error:
                raise Refused(str(error)) from error
        session = self._started
        kept, standing = session.kept
        return TrainerState(
            step=session.position.step,
            restored_from=session.restored_from,
            parameters=sum(parameter.numel() for parameter in session.optimizer.compute.values()),
            model_files=session.model_files,
            kept=kept,
            standing=standing,
        )

    def progress(self, term: int) -> Progress:
        """What whoever delivers groups has to know."""
        session = self._session(term)
        done = session.position.step
        return Progress(done, session.learner.held(done + 1), self.settings.training.row_rules)

    def contribute(self, term: int, step: int, delivery: Delivery, shares: Shares) -> ContributeReport:
        """Gradients of finished groups of the step under way that are not in; steps that are done cost nothing."""
        session, began = self._session(term), time.monotonic()
        done = session.position.step
        if step == done:
            return ContributeReport(step, 0, 0.0)
        if step != done + 1:
            raise Refused(f"step {step} takes no groups: step {done} is done, so {done + 1} is next")
        try:
            held, tokens = session.learner.take_early(step, delivery, shares)
        except ValueError as error:
            raise Refused(f"step {step} cannot take groups early: {error}") from error
        return ContributeReport(step, held, time.monotonic() - began, tokens)

    def open_gradient_inboxes(self, term: int, count: int) -> tuple[RelayMember, ...]:
        """Where so many lent machines bring their sums, until the next update; what lay there is forgotten. Rank 0's
        answer."""
        session = self._session(term)
        if not session.ranks.leads:
            return ()
        if self._make_inboxes is None:
            raise Refused("this trainer has no inbox: it takes no contributions of others")
        self._inboxes = self._inboxes or self._make_inboxes()
        return self._inboxes.open(session.position.step + 1, count)

    def accept(self, term: int, handover: ContributionReceipt, delivery: Delivery) -> ContributeReport:
        """Add the contribution that lies at the inbox, whole and once."""
        session, began = self._session(term), time.monotonic()
        done, step, parameters = session.position.step, handover.step, session.optimizer.compute
        if step == done:
            return ContributeReport(step, 0, 0.0)
        check_standing(handover, term, done, session.published)
        whole = self._lead(lambda: read_whole(self._inboxes, handover, parameters), lambda: None) or {}
        try:
            contribution = contribution_of(handover, whole, parameters, session.ranks)
            held = session.learner.accept(step, delivery, contribution)
        except ValueError as error:
            raise Refused(f"a contribution to step {step} is not taken: {error}") from error
        return ContributeReport(step, held, time.monotonic() - began)

    def train(self, term: int, step: int, delivery: Delivery, shares: Shares) -> TrainReport:
        """The update that leads from `step - 1` to `step`; one that is done answers its report again."""
        session = self._session(term)
        done = session.position
        if step == done.step and done.report is not None:
            return done.report
        if step != done.step + 1:
            raise Refused(f"step {step} cannot be trained: step {done.step} is done, so {done.step + 1} is next")
        try:
            report = session.learner.train(step, delivery, shares)
        except (ValueError, NonFiniteGradient) as error:
            raise Refused(f"step {step} cannot be trained: {error}") from error
        session.position = state.Position(step, report)
        self._close_inboxes()
        return report

    def publish(self, term: int, version: int, step: int, chain: Chain) -> PublishReport:
        """Copy the weights after `step` into the host buffer and ship them behind; the same version again is only
        shipped again."""
        session = self._session(term)
        last = session.published
        if step != session.position.step:
            raise Refused(
                f"version {version} of step {step}: step {session.position.step} is in hand, and only that can be "
                "published"
            )
        if last and version <= last[0] and last != (version, step):
            raise Refused(
                f"version {version} at step {step}: version {last[0]} was published at step {last[1]}; use a higher one"
            )
        again = last == (version, step)
        session.published = None
        report = self._lead(lambda: session.hand_over(version, again=again), lambda: session.take_part(again=again))
        session.published = (version, step)
        if session.publisher:
            session.publisher.ship(term, chain)
        return report or PublishReport(version, 0, 0.0)

    def checkpoint(self, term: int, step: int, standing: str) -> str:
        """Write everything of this step atomically, and the coordinator's document with it; returns the folder's name.
        The previous one stays when it fails."""
        session = self._session(term)
        if step != session.position.step:
            raise Refused(
                f"checkpoint of step {step}: step {session.position.step} is in hand, and only that can be written"
            )
        shot = state.take(session.ranks, session.optimizer, session.identity, session.position)
        name = self._lead(lambda: shot.write(self._store, standing), lambda: walk_through(shot.tensors))
        session.kept = step, standing
        return name or ""

    def export(self, term: int) -> str:
        """Write the weights in hand, as published, as a Hugging Face folder; returns its path."""
        session, folder = self._session(term), self.settings.export_folder
        weights, dtype = session.optimizer.compute, session.optimizer.published
        self._lead(lambda: write_model(folder, session.model_files, weights, dtype), session.take_part)
        return str(folder)

    def close(self) -> None:
        """Stop shipping and leave the other ranks. Idempotent."""
        if self._started is not None:
            if self._started.publisher:
                self._started.publisher.close()
            self._started.ranks.close()
        self._close_inboxes()
        self._started = self._meeting = None

    def _close_inboxes(self) -> None:
        if self._inboxes is not None:
            self._inboxes.close()

    def _session(self, term: int) -> _Session:
        self._fence.check(term)
        if self._started is None:
            raise Refused("the trainer is not started: call start first")
        return self._started

    def _lead(self, lead: Callable[[], Answer], follow: Callable[[], object]) -> Answer | None:
        """Rank 0 does `lead` while the others `follow` through its collectives. All raise `Refused` when it cannot;
        only rank 0 has an answer."""
        ranks = self._started.ranks if self._started else RankGroup()
        answer, failure = None, ""
        if ranks.leads:
            try:
                answer = lead()
            except (CheckpointError, SegmentError, Refused, OSError) as error:
                failure = str(error)
        else:
            follow()
        if failure := ranks.broadcast_bytes(failure.encode()).decode():
            raise Refused(failure)
        return answer

    def _start(self, host: str, port: int) -> _Session:
        settings, config = self.settings, self.settings.training
        folder = resolve(settings.model_source, settings.cache_folder)
        rng_state.seed_all(config.seed, self.rank)
        check_fits(
            folder.path, config, self.size, settings.device,
            step_tokens=settings.step_tokens, early=settings.early, longest=settings.longest,
        )  # fmt: skip
        ranks = self._join(host, port)
        policy = self._policy(folder.path, ranks)
        identity = ModelIdentity.of(policy.model, settings.model_source, ranks)
        optimizer = MasterOptimizer(policy.model, config)
        reference = None
        if config.kl_coefficient > 0:
            reference = self._policy(folder.path, ranks)
            round_parameters(reference.model.requires_grad_(False), optimizer.published)
        if computes_again(settings.device, self.size):
            policy.enable_checkpointing()
        restored = state.read(self._store, ranks, optimizer, identity)
        return _Session(
            ranks=ranks,
            learner=Learner(policy, optimizer, config, reference=reference, ranks=ranks),
            identity=identity,
            model_files=folder.model_files(),
            position=restored.position,
            restored_from=restored.name,
            kept=(restored.position.step, restored.standing),
            publisher=self._make_publisher() if ranks.leads else None,
        )

    def _join(self, host: str, port: int) -> RankGroup:
        device = self.settings.device
        if self.size == 1:
            return RankGroup(device=device)
        if self.rank == 0:
            return RankGroup(0, self.size, device=device, store=self._meeting)
        return RankGroup.join(host, port, self.rank, self.size, device=device)

    def _policy(self, folder: Path, ranks: RankGroup) -> Policy:
        settings, config = self.settings, self.settings.training
        model = load_model(
            folder, dtype=config.compute_dtype, device=settings.device, longest=settings.longest, ranks=ranks
        )
        return Policy(model, temperature=config.temperature, autocast=config.autocast)
