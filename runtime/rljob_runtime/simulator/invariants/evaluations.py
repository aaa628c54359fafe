"""Evaluation invariants: they hold in both modes.

- never trained on: no update has a response of an evaluation;
- own weights: a response of an evaluation is generated with the weights after the step that it evaluates;
- evaluated: in the history that leads to the final weights, every evaluation that was due has ended, with a result or
  with a reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from rljob_runtime.scheduling.evaluation import is_due
from rljob_runtime.simulator.core.events import Row, Submitted, Trained


class EvaluationRecord:
    """The evaluations of a run. `every_rounds`: of each evaluation, by name. Methods return a violation, or None."""

    def __init__(self, every_rounds: Mapping[str, int]) -> None:
        self._every_rounds = every_rounds
        self._ended: defaultdict[int, dict[str, bool]] = defaultdict(dict)
        self._began = -1
        """Step at which the store's history begins, if a store was lost."""

    def commit(self, rows: Iterable[Row]) -> None:
        """Follow the rows of a transaction."""
        for row in rows:
            if row.table == "evaluations":
                (step,) = row.identity
                if row.values is None:
                    self._ended.pop(step, None)
                else:
                    name, result, abandoned = row.values
                    self._ended[step][str(name)] = result is not None or abandoned is not None

    def history_begins(self, step: int) -> None:
        """Accept a store that knows nothing before `step`."""
        self._ended.clear()
        self._began = step

    @staticmethod
    def trained(event: Trained) -> str | None:
        """Check an update."""
        keys = [scored.response.key for group in event.groups for scored in group.responses]
        found = [str(key) for key in keys if key.prompt.evaluation is not None]
        return f"step {event.step} trains on {found}" if found else None

    @staticmethod
    def submitted(event: Submitted, versions: Mapping[int, int], contents: list[int]) -> str | None:
        """Check a request. `contents`: the weights after each step."""
        step = event.key.prompt.epoch
        if event.key.prompt.evaluation is None or step >= len(contents):
            return None
        held = versions.get(event.version)
        return None if held == contents[step] else f"{event.key} is generated with version {event.version}"

    def end(self, done: int) -> str | None:
        """Check the end of a job with so many rounds."""
        missing = [
            f"{name} after round {step}"
            for name, every in self._every_rounds.items()
            for step in range(done + 1)
            if is_due(every, step, done) and step > self._began and not self._ended[step].get(name)
        ]
        return f"{len(missing)} evaluations have not ended: {missing[:3]}" if missing else None
