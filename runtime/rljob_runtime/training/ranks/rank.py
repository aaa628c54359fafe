"""Trainer rank: one rank of the trainer, from start to export.

Only rank 0 writes files and sends weights; the other ranks join its collectives. All methods block and run one at a
time. `group.py` gives every rank the same calls in the same order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from torch.distributed import TCPStore

from rljob_runtime.models.errors import ModelError
from rljob_runtime.models.source import resolve
from rljob_runtime.protocols import (
    Chain,
    ContributeReport,
    ContributionReceipt,
    FunctionFailed,
    PublishReport,
    Refused,
    RelayMember,
    TermFence,
    TrainerState,
    TrainReport,
    VolumeFull,
)
from rljob_runtime.relay.slot import SegmentError
from rljob_runtime.training.algorithm.advantage import ScoredGroup
from rljob_runtime.training.algorithm.own import OwnAdvantage
from rljob_runtime.training.batch.delivery import Delivery, Progress, Shares
from rljob_runtime.training.checkpoint import rng_state, state
from rljob_runtime.training.checkpoint.export import write_model
from rljob_runtime.training.checkpoint.kept_models import KeptModels
from rljob_runtime.training.checkpoint.model_fingerprint import ModelFingerprint
from rljob_runtime.training.checkpoint.store import CheckpointError, CheckpointStore
from rljob_runtime.training.loans.accept import ContributionInboxes, check_fence, read_sums, scatter_contribution
from rljob_runtime.training.model.attention import UnsupportedModel
from rljob_runtime.training.model.capacity import check_fits
from rljob_runtime.training.model.memory import recomputes_activations
from rljob_runtime.training.model.optimizer import MasterOptimizer, NonFiniteGradient, round_parameters
from rljob_runtime.training.model.policy import Policy
from rljob_runtime.training.model.pretrained import load_model
from rljob_runtime.training.model.sharding import RankGroup, join_gather, open_rendezvous
from rljob_runtime.training.ranks.session import Publisher, TrainingSession
from rljob_runtime.training.ranks.settings import TrainerSettings
from rljob_runtime.training.step.learner import Learner

Answer = TypeVar("Answer")


class TrainerRank:
    """Rank `rank` of `size`.

    It raises only the protocol's errors (`Refused`, `StaleTerm`).
    """

    def __init__(
        self,
        settings: TrainerSettings,
        make_publisher: Callable[[], Publisher],
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
        self._models = KeptModels(settings.export_folder.with_name("candidates"))
        self._fence = TermFence("this trainer")
        self._rendezvous_store: TCPStore | None = None
        self._started: TrainingSession | None = None

    def rendezvous(self, term: int, host: str) -> int:
        """Open the rendezvous of the ranks on `host` and return its port.

        Rank 0 of several.
        """
        self._fence.check(term)
        if self._rendezvous_store is None:
            self._rendezvous_store = open_rendezvous(host, self.size)
        return int(self._rendezvous_store.port)

    def start(self, term: int, host: str = "", port: int = 0) -> TrainerState:
        """Load the model or the newest complete checkpoint, and join the other ranks at rank 0's rendezvous.

        Idempotent.
        """
        self._fence.check(term)
        if self._started is None:
            try:
                self._started = self._start(host, port)
            except (UnsupportedModel, ModelError, CheckpointError) as error:
                raise Refused(str(error)) from error
        session = self._started
        kept, coordinator_snapshot = session.kept
        return TrainerState(
            step=session.position.step,
            restored_from=session.restored_from,
            parameters=sum(parameter.numel() for parameter in session.optimizer.compute.values()),
            model_files=session.model_files,
            kept=kept,
            coordinator_snapshot=coordinator_snapshot,
        )

    def progress(self, term: int) -> Progress:
        """Return the progress that a sender of groups needs."""
        session = self._session(term)
        done = session.position.step
        return Progress(done, session.learner.held_groups(done + 1), self.settings.training.row_rules)

    def advantages(self, term: int, groups: Sequence[ScoredGroup]) -> list[list[float]]:
        """Compute the advantages of each group by the user's function."""
        session = self._session(term)
        if session.own_advantage is None:
            raise Refused("the job has no advantage function")
        return [session.own_advantage(group) for group in groups]

    def contribute(self, term: int, step: int, delivery: Delivery, shares: Shares) -> ContributeReport:
        """Compute gradients of new groups of the next step.

        A step that is done costs nothing.
        """
        session, began = self._session(term), time.monotonic()
        done = session.position.step
        if step == done:
            return ContributeReport(step, 0, 0.0)
        if step != done + 1:
            raise Refused(f"step {step} accepts no groups: step {done} is done, so {done + 1} is next")
        try:
            held, tokens = session.learner.contribute_early(step, delivery, shares)
        except ValueError as error:
            raise Refused(f"step {step} cannot accept early groups: {error}") from error
        return ContributeReport(step, held, time.monotonic() - began, tokens)

    def open_gradient_inboxes(self, term: int, count: int) -> tuple[RelayMember, ...]:
        """Open an inbox for each of `count` loaned machines until the next update.

        Earlier contents are dropped. Rank 0 returns the addresses.
        """
        session = self._session(term)
        if not session.ranks.leads:
            return ()
        if self._make_inboxes is None:
            raise Refused("this trainer has no gradient inboxes: it accepts no contributions of other workers")
        self._inboxes = self._inboxes or self._make_inboxes()
        return self._inboxes.open(session.position.step + 1, count)

    def accept(self, term: int, receipt: ContributionReceipt, delivery: Delivery) -> ContributeReport:
        """Add the contribution in the inbox, completely and once."""
        session, began = self._session(term), time.monotonic()
        done, step, parameters = session.position.step, receipt.step, session.optimizer.compute
        if step == done:
            return ContributeReport(step, 0, 0.0)
        check_fence(receipt, term, done, session.published)
        full = self._lead(lambda: read_sums(self._inboxes, receipt, parameters), lambda: None) or {}
        try:
            contribution = scatter_contribution(receipt, full, parameters, session.ranks)
            held = session.learner.accept(step, delivery, contribution)
        except ValueError as error:
            raise Refused(f"a contribution to step {step} is not accepted: {error}") from error
        return ContributeReport(step, held, time.monotonic() - began)

    def train(self, term: int, step: int, delivery: Delivery, shares: Shares) -> TrainReport:
        """Run the update from `step - 1` to `step`.

        A step that is done returns its report again.
        """
        session = self._session(term)
        done = session.position
        if step == done.step and done.report is not None:
            return done.report
        if step != done.step + 1:
            raise Refused(f"step {step} cannot be trained: step {done.step} is done, so {done.step + 1} is next")
        try:
            report = session.learner.train(step, delivery, shares)
        except FunctionFailed as error:
            raise FunctionFailed(f"step {step} is not trained: {error}") from error
        except (ValueError, NonFiniteGradient) as error:
            raise Refused(f"step {step} cannot be trained: {error}") from error
        session.position = state.TrainerPosition(step, report)
        self._close_inboxes()
        return report

    def publish(self, term: int, version: int, step: int, chain: Chain) -> PublishReport:
        """Copy the weights after `step` into the host buffer and send them in the background.

        The same version again is only sent again.
        """
        session = self._session(term)
        last = session.published
        if step != session.position.step:
            raise Refused(
                f"version {version} of step {step}: the trainer holds step {session.position.step}, and can "
                "publish only that"
            )
        if last and version <= last[0] and last != (version, step):
            raise Refused(
                f"version {version} at step {step}: version {last[0]} was published at step {last[1]}; use a higher one"
            )
        again = last == (version, step)
        session.published = None
        report = self._lead(
            lambda: session.publish_weights(version, again=again), lambda: session.join_gather_of_weights(again=again)
        )
        session.published = (version, step)
        if session.publisher:
            session.publisher.ship(term, chain)
        return report or PublishReport(version, 0, 0.0)

    def checkpoint(self, term: int, step: int, coordinator_snapshot: str) -> str:
        """Write a checkpoint of this step and the coordinator's snapshot atomically.

        Returns the folder's name. The previous checkpoint stays if the write fails.
        """
        session = self._session(term)
        if step != session.position.step:
            raise Refused(
                f"checkpoint of step {step}: the trainer holds step {session.position.step}, and can write only that"
            )
        shot = state.capture(session.ranks, session.optimizer, session.fingerprint, session.position)
        name = self._lead(lambda: shot.write(self._store, coordinator_snapshot), lambda: join_gather(shot.tensors))
        session.kept = step, coordinator_snapshot
        return name or ""

    def export(self, term: int) -> str:
        """Write the current weights, rounded as published, as a Hugging Face folder.

        Returns its path.
        """
        folder = self.settings.export_folder
        self._write_model(self._session(term), folder)
        return str(folder)

    def save_model(self, term: int, step: int) -> tuple[int, ...]:
        """Write the weights of this step, rounded as published, until it is known whether they are the best.

        Returns the steps that have a model.
        """
        session = self._session(term)
        if step != session.position.step:
            raise Refused(
                f"model of step {step}: the trainer holds step {session.position.step}, and can write only that"
            )
        self._write_model(session, self._models.folder(step))
        return self._lead(self._models.steps, lambda: None) or ()

    def retain_models(self, term: int, keep: Sequence[int] | None) -> tuple[int, ...]:
        """Delete models except those of the steps to keep; None keeps all. Returns the steps that have one."""
        self._session(term)
        return self._lead(lambda: self._models.retain(keep), lambda: None) or ()

    def export_best(self, term: int, step: int) -> str:
        """Make the model of this step the best one, in the folder `best` beside the final model.

        Returns its path.
        """
        self._session(term)
        folder = self.settings.export_folder.with_name("best")
        self._lead(lambda: self._models.export(step, folder), lambda: None)
        return str(folder)

    def _write_model(self, session: TrainingSession, folder: Path) -> None:
        weights, dtype = session.optimizer.compute, session.optimizer.published
        self._lead(lambda: write_model(folder, session.model_files, weights, dtype), session.join_gather_of_weights)

    def close(self) -> None:
        """Stop sending and leave the rank group.

        Idempotent.
        """
        if self._started is not None:
            if self._started.publisher:
                self._started.publisher.close()
            self._started.ranks.close()
        self._close_inboxes()
        self._started = self._rendezvous_store = None

    def _close_inboxes(self) -> None:
        if self._inboxes is not None:
            self._inboxes.close()

    def _session(self, term: int) -> TrainingSession:
        self._fence.check(term)
        if self._started is None:
            raise Refused("the trainer is not started: call start first")
        return self._started

    def _lead(self, lead: Callable[[], Answer], follow: Callable[[], object]) -> Answer | None:
        """Run `lead` on rank 0 while the other ranks join its collectives by `follow`.

        When rank 0 fails, all ranks raise `Refused`, or `VolumeFull`. Only rank 0 returns an answer.
        """
        ranks = self._started.ranks if self._started else RankGroup()
        answer, failure, full = None, "", False
        if ranks.leads:
            try:
                answer = lead()
            except (CheckpointError, SegmentError, Refused, OSError) as error:
                failure, full = str(error), isinstance(error, CheckpointError) and error.full
        else:
            follow()
        failure, full = json.loads(ranks.broadcast_bytes(json.dumps([failure, full]).encode()))
        if failure:
            raise (VolumeFull if full else Refused)(failure)
        return answer

    def _start(self, host: str, port: int) -> TrainingSession:
        settings, config = self.settings, self.settings.training
        folder = resolve(settings.model_source, settings.cache_folder)
        rng_state.seed_all(config.seed, self.rank)
        check_fits(
            folder.path, config, self.size, settings.device,
            step_tokens=settings.step_tokens, early=settings.early, longest=settings.longest,
        )  # fmt: skip
        own_advantage = OwnAdvantage(config.advantage_function) if config.advantage_function else None
        ranks = self._join(host, port)
        policy = self._policy(folder.path, ranks)
        fingerprint = ModelFingerprint.of(policy.model, settings.model_source, ranks)
        optimizer = MasterOptimizer(policy.model, config)
        reference = None
        if config.kl_coefficient > 0:
            reference = self._policy(folder.path, ranks)
            round_parameters(reference.model.requires_grad_(False), optimizer.published)
        if recomputes_activations(settings.device, self.size):
            policy.enable_checkpointing()
        restored = state.restore(self._store, ranks, optimizer, fingerprint)
        return TrainingSession(
            ranks=ranks,
            learner=Learner(policy, optimizer, config, reference=reference, ranks=ranks),
            fingerprint=fingerprint,
            model_files=folder.model_files(),
            position=restored.position,
            restored_from=restored.name,
            kept=(restored.position.step, restored.coordinator_snapshot),
            publisher=self._make_publisher() if ranks.leads else None,
            own_advantage=own_advantage,
        )

    def _join(self, host: str, port: int) -> RankGroup:
        device = self.settings.device
        if self.size == 1:
            return RankGroup(device=device)
        if self.rank == 0:
            return RankGroup(0, self.size, device=device, store=self._rendezvous_store)
        return RankGroup.join(host, port, self.rank, self.size, device=device)

    def _policy(self, folder: Path, ranks: RankGroup) -> Policy:
        settings, config = self.settings, self.settings.training
        model = load_model(
            folder, dtype=config.compute_dtype, device=settings.device, longest=settings.longest, ranks=ranks
        )
        return Policy(model, temperature=config.temperature, autocast=config.autocast(settings.device))
