"""Best model: keeps the weights of the best evaluation (`checkpoint.keepBest`), and exports them at the end.

The result of an evaluation arrives while later rounds train, and the trainer has other weights by then. So a model is
written at each round that is evaluated, and deleted when a better one is known. The results are in the store: a later
coordinator decides the same, and a rewind abandons models with their results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from rljob_api.status import BestModelStatus, StatusWarning
from rljob_runtime.coordinator.core.errors import ExportRefused
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.coordinator.reporting.timeline import TRAINER
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.coordinator.trainer.trainer_client import TrainerClient
from rljob_runtime.evaluation.history import best_of, model_to_give_up, models_to_keep, of_name
from rljob_runtime.evaluation.result import EvaluationResult
from rljob_runtime.protocols import Refused, StaleTerm, Trainer
from rljob_runtime.scheduling.evaluation import is_due

log = logging.getLogger(__name__)

PROBLEM = "BestModelNotKept"


class BestModel:
    """The models that may be the best. Without `checkpoint.keepBest` there are none.

    Methods raise `TrainerLost`, and `StaleTerm` if a later coordinator has the term.
    """

    def __init__(
        self, trainer: TrainerClient, store: StoreAccess, term: int, settings: Settings, reporter: Reporter
    ) -> None:
        self._trainer = trainer
        self._store = store
        self._term = term
        self._reporter = reporter
        self._settings = settings.keep_best
        self._every_rounds = next(
            (
                one.every_rounds
                for one in settings.evaluations
                if settings.keep_best is not None and one.name == settings.keep_best.evaluation
            ),
            None,
        )
        self._volume: tuple[int, ...] | None = None
        """Steps that have a model on the volume; None while they are not known."""
        self._first: int | None = None
        """The step at `begin`. Models of later steps are abandoned, except those written since."""
        self._written: set[int] = set()
        """The steps whose models were written since `begin`."""
        self._undeleted = False
        """Whether the last deletion was refused."""

    async def begin(self, step: int) -> None:
        """Learn which models there are, and delete those of later steps: their weights are abandoned."""
        self._volume, self._first, self._written = None, step, set()
        if self._settings is not None and await self._learn():
            await self._retain(self._saved)

    async def save_if_due(self, step: int, rounds: int) -> None:
        """Write the model of the trainer's step if it is evaluated.

        A refusal (e.g. a full disk) is a problem in the status; training continues, and the step is no candidate.
        """
        if self._every_rounds is None or step in self._written or not is_due(self._every_rounds, step, rounds):
            return
        what = f"The model of round {step} cannot be written, and cannot become the best"
        if await self._ask(what, lambda trainer: trainer.save_model(self._term, step)):
            self._written.add(step)
            self._reporter.problem(PROBLEM, None)

    async def forget_worse(self, floor: int) -> None:
        """Delete models that cannot be the best any more. The job may return to rounds from `floor` on."""
        if self._settings is None or not await self._learn():
            return
        keep = self._saved
        if len(keep) > 1 and (results := await self._results()):
            last = results[-1].round
            needed = models_to_keep(results, self._settings.metric, floor)
            keep = tuple(step for step in keep if step in needed or step > last)
        await self._retain(keep)

    async def make_room(self, what: str) -> bool:
        """Delete the worst model for `what`, which the volume has no room for.

        Returns False if there is none besides the best, or if it cannot be deleted.
        """
        if self._settings is None or not await self._learn():
            return False
        saved = self._saved
        step = model_to_give_up(saved, await self._results(), self._settings.metric)
        if step is None or not await self._retain(tuple(one for one in saved if one != step)) or step in self._saved:
            return False
        self._tell(f"The model of round {step} is deleted, and cannot become the best: there is no room for {what}")
        return True

    async def export(self) -> None:
        """Write the best model, if there is one, beside the final one. Raises `ExportRefused`."""
        if self._settings is None:
            return
        if not await self._learn():
            raise ExportRefused("the best model cannot be written: the kept models cannot be read")
        if (best := best_of(await self._results(), self._settings.metric)) is None:
            return
        try:
            path = await self._trainer.call(lambda trainer: trainer.export_best(self._term, best.round))
        except StaleTerm:
            raise
        except Refused as error:
            raise ExportRefused(f"the best model cannot be written: {error}") from error
        self._reporter.update(best_model=BestModelStatus(round=best.round, path=path))

    async def forget_all_others(self) -> None:
        """Delete the models that are not the best, at the end of the job."""
        if self._settings is None or (best := best_of(await self._results(), self._settings.metric)) is None:
            return
        await self._retain((best.round,))

    @property
    def _saved(self) -> tuple[int, ...]:
        """The steps of this history that have a model."""
        if self._volume is None or self._first is None:
            return ()
        return tuple(step for step in self._volume if step <= self._first or step in self._written)

    async def _learn(self) -> bool:
        """Learn which models there are, unless they are known.

        Returns False if the trainer refuses to tell, and before `begin`.
        """
        if self._first is None or self._volume is not None:
            return self._first is not None
        what = "The kept models cannot be read, and the best is not kept until they can"
        if not await self._ask(what, lambda trainer: trainer.retain_models(self._term, None)):
            return False
        self._reporter.problem(PROBLEM, None)
        return True

    async def _retain(self, keep: tuple[int, ...]) -> bool:
        """Delete the models of other steps. After a refusal they stay, and the next call tries again."""
        what = "Models that are not the best cannot be deleted, and take room"
        if keep == self._volume:
            return True
        deleted = await self._ask(what, lambda trainer: trainer.retain_models(self._term, keep))
        if deleted and self._undeleted:
            self._reporter.problem(PROBLEM, None)
        self._undeleted = not deleted
        return deleted

    async def _ask(self, what: str, method: Callable[[Trainer], Coroutine[Any, Any, tuple[int, ...]]]) -> bool:
        """Have the trainer change the models. A refusal is a problem in the status that begins with `what`."""
        try:
            self._volume = await self._trainer.call(method)
        except StaleTerm:
            raise
        except Refused as error:
            self._tell(f"{what}: {error}")
            return False
        return True

    def _tell(self, message: str) -> None:
        log.error("%s", message)
        self._reporter.problem(PROBLEM, StatusWarning(reason=PROBLEM, message=message[:2048]))
        self._reporter.timeline.event(PROBLEM, message, TRAINER)

    async def _results(self) -> list[EvaluationResult]:
        """Return the results whose models there are, by round."""
        found = await self._store.do(lambda store: store.evaluations.results())
        results = of_name(found, self._settings.evaluation) if self._settings is not None else []
        return [one for one in results if one.round in self._saved]
