"""The gradient unit of a loaned rollout machine: published weights in, raw gradient sums out (RollPacker, section 4.4).

A process for each accelerator of the machine, and this one, which holds no tensor: it plans the rows of each, counts
what is summed, and answers for all. It has no optimizer and no memory beyond a step. Ranks live as long as a loan. They
share their fate: when one of them fails, the sums of all are void, and the coordinator gives their groups to others.
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
from rljob_runtime.protocols.trajectory import Group
from rljob_runtime.relay.gradient_transfer import discard
from rljob_runtime.rollout.engines.rank_processes import ForkServer, RankProcesses
from rljob_runtime.rollout.engines.weights import VersionUnavailable
from rljob_runtime.training.algorithm.loss import Sums
from rljob_runtime.training.batch.delivery import Delivery, Progress, for_contribute
from rljob_runtime.training.batch.rows import Share
from rljob_runtime.training.loans.worker_rank import UnitSettings
from rljob_runtime.training.step.contribution import Contribution
from rljob_runtime.training.step.early_gradients import EarlySums
from rljob_runtime.training.step.gradients import check_counts

log = logging.getLogger(__name__)

PEER = "rljob_runtime.training.loans.worker_rank:UnitRank"
"""What a unit's fork server forks."""
GRACE_SECONDS = 1.0
"""How long after an error a rank may be heard to have ended: that is the cause then, and what is told. Sums are void
either way."""


@dataclass(frozen=True)
class _Task:
    """What sums are of: nothing of one task serves another."""

    term: int
    step: int
    version: int


class _Ranks:
    """The processes of a loan, which have met and made the model."""

    def __init__(self, fork_server: ForkServer, settings: UnitSettings, devices: Sequence[str]) -> None:
        fork_server.revive()
        self.processes = RankProcesses(fork_server, settings.ranks, devices, grace=GRACE_SECONDS)
        # Communicators are made when they are first used, and meet there.
        self._folder = tempfile.TemporaryDirectory(prefix="rljob-unit-")
        self._settings = settings
        self.vocabulary = 0

    def build(self) -> None:
        """Raises what a rank raises, and `RankDied`."""
        meeting = str(Path(self._folder.name) / "ranks")
        own = [(self._settings, rank, meeting) for rank in range(self._settings.ranks)]
        self.vocabulary = self.processes.call_each("build", own)[0]

    def end(self) -> bool:
        """End them; whether all that they held is free."""
        self.processes.kill()
        gone = self.processes.wait_gone()
        if gone:
            discard(self._settings.sender.folder)
        self._folder.cleanup()
        return gone


class GradientUnit:
    """`protocols.GradientWorker`, plain and blocking, one call at a time. Raises only the protocol's errors.
    `fork_server`: forks `worker_rank.UnitRank`s, and ends with the unit."""

    def __init__(self, name: str, settings: UnitSettings, fork_server: ForkServer) -> None:
        self.name = name
        self._settings = settings
        self._fork_server = fork_server
        self._devices: tuple[str, ...] = ()
        self._fence = TermFence(name)
        self._task: _Task | None = None
        self._sums: EarlySums | None = None
        self._ranks: _Ranks | None = None
        self._lock = threading.Lock()
        self._unwanted = 0

    def adopt(self, devices: Sequence[str]) -> None:
        """Compute on these accelerators (in CUDA_VISIBLE_DEVICES' words), which the machine's seats have too."""
        if len(devices) != self._settings.ranks:
            raise Refused(
                f"{self.name}: the seats have {len(devices)} accelerators; {self._settings.ranks} would be right"
            )
        self._devices = tuple(devices)

    def compute(self, term: int, step: int, version: int, groups: Sequence[Group]) -> ComputeReport:
        """See `GradientWorker.compute`."""
        self._fence.check(term)
        began = time.monotonic()
        ranks = self._with_weights(_Task(term, step, version))
        held, tokens, each = self._sums, 0, [0] * self._settings.ranks
        delivery, shares = self._plan(step, groups, ranks.vocabulary)
        if fresh := delivery.groups:
            sums = [Sums.of(values) for values in self._ask(ranks, "add", [(share,) for share in shares])]
            total = sum(sums[1:], sums[0])
            tokens, each = total.tokens, [own.tokens for own in sums]
            contribution = Contribution(step, self.name, term, frozenset(group.prompt for group in fresh), {}, total)
            try:
                check_counts(contribution, fresh)
            except ValueError as error:
                raise self._failed(error) from error
            held = self._sums = held.plus(fresh, contribution) if held else EarlySums.of(fresh, contribution)
        assert held is not None, "no groups are no delivery"
        return ComputeReport(step, len(held.groups), tokens, time.monotonic() - began, tuple(each))

    def hand_over(self, term: int, step: int, number: int, inbox: RelayMember) -> ContributionReceipt:
        """See `GradientWorker.hand_over`. What was handed over stays until the next task: a repetition is the same."""
        self._fence.check(term)
        task, held, ranks = self._task, self._sums, self._ranks
        if ranks is None or task is None or held is None or (task.term, task.step) != (term, step):
            raise Refused(f"{self.name} holds no sums of step {step}, term {term}")
        nbytes = self._ask(ranks, "deliver", [(term, number, inbox)] * self._settings.ranks)[0]
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
            figures=tuple(total.sums.values()),
        )

    @contextmanager
    def letting_go(self, term: int) -> Iterator[None]:
        """For as long as `release` is on its way: what is computed or delivered for the loan ends at once, and nothing
        is begun. From any thread."""
        if term < self._fence.term:
            yield
            return
        with self._lock:
            self._unwanted += 1
            ranks = self._ranks
        if ranks is not None:
            ranks.processes.interrupt()
        try:
            yield
        finally:
            with self._lock:
                self._unwanted -= 1

    def release(self, term: int) -> None:
        """See `GradientWorker.release`. Raises `Refused` where the ranks' processes do not end."""
        self._fence.check(term)
        self._end()

    def close(self) -> None:
        """The unit is over, and its fork server with it."""
        self._end()
        self._fork_server.close()

    def _with_weights(self, task: _Task) -> _Ranks:
        """The ranks, with exactly the published weights of the task, and sums of nothing else."""
        ranks = self._ranks or self._start()
        if task != self._task:
            self._task = self._sums = None
            self._ask(ranks, "begin", [(task.version,)] * self._settings.ranks)
            self._task = task
            log.info("%s computes with version %d on %d ranks", self.name, task.version, self._settings.ranks)
        return ranks

    def _start(self) -> _Ranks:
        try:
            ranks = _Ranks(self._fork_server, self._settings, self._devices)
        except (RuntimeError, OSError) as error:
            raise self._failed(error) from error
        with self._lock:
            self._ranks = ranks
            unwanted = self._unwanted
        if unwanted:
            raise self._failed("begun too late")
        try:
            ranks.build()
        except Exception as error:  # whatever a rank's model raises
            raise self._failed(error) from error
        return ranks

    def _plan(self, step: int, groups: Sequence[Group], vocabulary: int) -> tuple[Delivery, list[Share]]:
        """Those that are not summed yet, and each rank's rows of them. Raises `Refused`; sums stay as they are."""
        held = self._sums.groups if self._sums else {}
        progress = Progress(step - 1, held, self._settings.training.row_rules)
        try:
            delivery, shares = for_contribute(progress, step, groups, self._settings.ranks)
        except ValueError as error:
            raise Refused(f"{self.name}: {error}") from error
        if not delivery.keeps:
            raise Refused(f"{self.name}: a group of step {step} comes again with other contents")
        highest = max((group.highest_token for group in delivery.groups), default=0)
        if highest >= vocabulary:
            raise Refused(f"{self.name}: token {highest} is outside the model's vocabulary of {vocabulary}")
        return delivery, [share for (share,) in shares]

    def _ask(self, ranks: _Ranks, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """What all ranks answer. An error of any is the end of all: a part of them may have added what others have
        not."""
        try:
            return ranks.processes.call_each(method, arguments)
        except VersionUnavailable as error:
            self._end()
            raise WrongVersion(f"{self.name}: {error}") from error
        except Exception as error:  # whatever a rank raises, or that it died
            raise self._failed(error) from error

    def _failed(self, reason: object) -> PeerError:
        """The loan's sums are void; what to say of it."""
        unwanted = self._unwanted
        self._end()
        if unwanted:
            return Refused(f"{self.name}: its sums are not wanted any more")
        if isinstance(reason, PeerError):
            return reason
        return Refused(f"{self.name} has lost its sums: {reason}")

    def _end(self) -> None:
        """Weights and sums are gone, and the accelerators' memory is free for the engines that sleep."""
        with self._lock:
            ranks, self._ranks = self._ranks, None
        self._task = self._sums = None
        if ranks is not None and not ranks.end():
            raise Refused(f"{self.name}: its processes do not end; what they hold of the accelerators is not free")
