"""Gradient worker of a loaned rollout machine: published weights in, raw gradient sums out (RollPacker §4.4).

One rank process runs for each accelerator of the machine. This process holds no tensor: it plans the rows of each rank,
checks the counts and answers for all ranks. It has no optimizer and keeps nothing beyond a step. Ranks live as long as
a loan. If one rank fails, the sums of all are void, and the coordinator assigns their groups to other workers.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_runtime.protocols import (
    ComputeReport,
    ContributionReceipt,
    PeerError,
    Refused,
    RelayMember,
    TermFence,
    WrongVersion,
)
from rljob_runtime.protocols.trajectory import Group, PromptKey
from rljob_runtime.relay.gradient_transfer import discard
from rljob_runtime.rollout.engines.rank_processes import ForkServer, RankProcesses
from rljob_runtime.rollout.engines.weights import VersionUnavailable
from rljob_runtime.training.algorithm.own import OwnAdvantage
from rljob_runtime.training.algorithm.sums import LossSums
from rljob_runtime.training.batch.delivery import Delivery, Progress, plan_contribute
from rljob_runtime.training.batch.rows import Share, scored_group
from rljob_runtime.training.loans.worker_rank import GradientWorkerSettings
from rljob_runtime.training.row_rules import AdvantageRules
from rljob_runtime.training.step.contribution import Contribution
from rljob_runtime.training.step.early_gradients import EarlyGradients
from rljob_runtime.training.step.gradients import check_counts

log = logging.getLogger(__name__)

PEER = "rljob_runtime.training.loans.worker_rank:GradientRank"
"""Class of the rank processes, which the fork server starts."""
GRACE_SECONDS = 1.0
"""A rank that ends within this time after an error is taken as the cause of the error. The sums are void either way."""


@dataclass(frozen=True)
class _Task:
    """The inputs that the sums depend on.

    Nothing of one task serves another.
    """

    term: int
    step: int
    version: int


class _Ranks:
    """The rank processes of a loan.

    They have met and built the model.
    """

    def __init__(self, fork_server: ForkServer, settings: GradientWorkerSettings, devices: Sequence[str]) -> None:
        fork_server.revive()
        self.processes = RankProcesses(fork_server, settings.ranks, devices, grace=GRACE_SECONDS)
        # Ranks create communicators on first use and meet in this folder.
        self._folder = tempfile.TemporaryDirectory(prefix="rljob-gradient-worker-")
        self._settings = settings
        self.vocabulary = 0

    def build(self) -> None:
        """Build the model on all ranks.

        Raises the errors of a rank, and `RankDied`.
        """
        meeting = str(Path(self._folder.name) / "ranks")
        own = [(self._settings, rank, meeting) for rank in range(self._settings.ranks)]
        self.vocabulary = self.processes.call_each("build", own)[0]

    def end(self) -> bool:
        """End the processes and return whether they have exited, so their memory is free."""
        self.processes.kill()
        ended = self.processes.wait_gone()
        if ended:
            discard(self._settings.sender.folder)
        self._folder.cleanup()
        return ended


class BlockingGradientWorker:
    """`protocols.GradientWorker` with blocking methods, one call at a time.

    It raises only the protocol's errors. `fork_server` forks the `worker_rank.GradientRank` processes and ends with the
    worker.
    """

    def __init__(self, name: str, settings: GradientWorkerSettings, fork_server: ForkServer) -> None:
        self.name = name
        self._settings = settings
        self._fork_server = fork_server
        self._devices: tuple[str, ...] = ()
        self._fence = TermFence(name)
        self._task: _Task | None = None
        self._sums: EarlyGradients | None = None
        self._ranks: _Ranks | None = None
        self._lock = threading.Lock()
        self._releases = 0

    def adopt(self, devices: Sequence[str]) -> None:
        """Compute on these accelerators, which the machine's engine slots also use.

        They are named as in CUDA_VISIBLE_DEVICES.
        """
        if len(devices) != self._settings.ranks:
            raise Refused(
                f"{self.name}: the engine slots have {len(devices)} accelerators; {self._settings.ranks} would be right"
            )
        self._devices = tuple(devices)

    def compute(self, term: int, step: int, version: int, groups: Sequence[Group]) -> ComputeReport:
        """See `GradientWorker.compute`."""
        self._fence.check(term)
        began = time.monotonic()
        ranks = self._ranks_with_weights(_Task(term, step, version))
        held, tokens, each = self._sums, 0, [0] * self._settings.ranks
        delivery, shares = self._plan(step, groups, ranks.vocabulary)
        if fresh := delivery.groups:
            sums = [LossSums.of(values) for values in self._call_ranks(ranks, "add", [(share,) for share in shares])]
            total = sum(sums[1:], sums[0])
            tokens, each = total.tokens, [own.tokens for own in sums]
            contribution = Contribution(step, self.name, term, frozenset(group.prompt for group in fresh), {}, total)
            try:
                check_counts(contribution, fresh)
            except ValueError as error:
                raise self._void(error) from error
            held = self._sums = held.plus(fresh, contribution) if held else EarlyGradients.of(fresh, contribution)
        assert held is not None, "no groups are no delivery"
        return ComputeReport(step, len(held.groups), tokens, time.monotonic() - began, tuple(each))

    def deliver(self, term: int, step: int, number: int, inbox: RelayMember) -> ContributionReceipt:
        """See `GradientWorker.deliver`.

        The sums stay until the next task, so a repetition delivers the same sums.
        """
        self._fence.check(term)
        task, held, ranks = self._task, self._sums, self._ranks
        if ranks is None or task is None or held is None or (task.term, task.step) != (term, step):
            raise Refused(f"{self.name} holds no sums of step {step}, term {term}")
        nbytes = self._call_ranks(ranks, "deliver", [(term, number, inbox)] * self._settings.ranks)[0]
        total = held.total
        return ContributionReceipt(
            step=step,
            worker=self.name,
            term=term,
            version=task.version,
            number=number,
            groups=tuple(sorted(held.groups)),
            tokens=total.sums.tokens,
            nbytes=nbytes,
            sums=total.sums.to_dict(),
        )

    @contextmanager
    def releasing(self, term: int) -> Iterator[None]:
        """Interrupt the loan's computation and delivery, and start none until the context ends.

        Use it around `release`. Safe from any thread.
        """
        if term < self._fence.term:
            yield
            return
        with self._lock:
            self._releases += 1
            ranks = self._ranks
        if ranks is not None:
            ranks.processes.interrupt()
        try:
            yield
        finally:
            with self._lock:
                self._releases -= 1

    def release(self, term: int) -> None:
        """See `GradientWorker.release`.

        Raises `Refused` when the rank processes do not end.
        """
        self._fence.check(term)
        self._end()

    def close(self) -> None:
        """End the worker and its fork server."""
        self._end()
        self._fork_server.close()

    def _ranks_with_weights(self, task: _Task) -> _Ranks:
        """Return the ranks, holding the published weights of the task and only its sums."""
        ranks = self._ranks or self._start()
        if task != self._task:
            self._task = self._sums = None
            self._call_ranks(ranks, "begin", [(task.version,)] * self._settings.ranks)
            self._task = task
            log.info("%s computes with version %d on %d ranks", self.name, task.version, self._settings.ranks)
        return ranks

    def _start(self) -> _Ranks:
        try:
            ranks = _Ranks(self._fork_server, self._settings, self._devices)
        except (RuntimeError, OSError) as error:
            raise self._void(error) from error
        with self._lock:
            self._ranks = ranks
            ending = self._releases
        if ending:
            raise self._void("the loan ends")
        try:
            ranks.build()
        except Exception as error:  # a rank's model may raise any error
            raise self._void(error) from error
        return ranks

    def _plan(self, step: int, groups: Sequence[Group], vocabulary: int) -> tuple[Delivery, list[Share]]:
        """Plan the rows of each rank for the groups that are not summed yet.

        Raises `Refused` and keeps the sums.
        """
        held = self._sums.groups if self._sums else {}
        rules = self._settings.training.row_rules
        progress = Progress(step - 1, held, rules, self._own_advantages(groups, rules.advantages))
        try:
            delivery, shares = plan_contribute(progress, step, groups, self._settings.ranks)
        except ValueError as error:
            raise Refused(f"{self.name}: {error}") from error
        if not delivery.keeps:
            raise Refused(f"{self.name}: a group of step {step} was summed with other contents")
        highest = max((group.highest_token for group in delivery.groups), default=0)
        if highest >= vocabulary:
            raise Refused(f"{self.name}: token {highest} is outside the model's vocabulary of {vocabulary}")
        return delivery, [share for (share,) in shares]

    def _own_advantages(self, groups: Sequence[Group], rules: AdvantageRules) -> dict[PromptKey, list[float]]:
        """Compute advantages by the user's function, if the job has one. Raises `FunctionFailed`."""
        if rules.function is None:
            return {}
        own = OwnAdvantage(rules.function)
        return {group.prompt: own(scored_group(group, rules)) for group in groups}

    def _call_ranks(self, ranks: _Ranks, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call all ranks and return their answers.

        An error of one rank ends all ranks: some may have added what others have not.
        """
        try:
            return ranks.processes.call_each(method, arguments)
        except VersionUnavailable as error:
            self._end()
            raise WrongVersion(f"{self.name}: {error}") from error
        except Exception as error:  # a rank may raise any error, or die
            raise self._void(error) from error

    def _void(self, reason: object) -> PeerError:
        """Drop the loan's sums and return the error to raise."""
        ending = self._releases
        self._end()
        if ending:
            return Refused(f"{self.name}: its loan has ended, and its sums are dropped")
        if isinstance(reason, PeerError):
            return reason
        return Refused(f"{self.name} has lost its sums: {reason}")

    def _end(self) -> None:
        """Drop weights and sums, and free the accelerators' memory for the sleeping engines."""
        with self._lock:
            ranks, self._ranks = self._ranks, None
        self._task = self._sums = None
        if ranks is not None and not ranks.end():
            raise Refused(f"{self.name}: its processes do not end, so the accelerators' memory is not free")
