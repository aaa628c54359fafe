"""MLflow: a run with the tag `rljob.uid`, which a later coordinator continues.

`config`: `trackingUri` (else the variable `MLFLOW_TRACKING_URI`), `experiment` (default `rljob`), `tags`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from rljob_runtime.observers.protocol import JobEvent, ObservedJob
from rljob_runtime.observers.sample_rows import COLUMNS, row_of

TAG = "rljob.uid"
LONGEST_PARAM = 500
"""Characters of a parameter's value; a server refuses longer ones from 6,000 on."""
BATCH = 100
"""Parameters of a request; a server refuses more."""


class MlflowRun:
    """Logs each round to one run."""

    def __init__(self, job: ObservedJob, config: Mapping[str, Any]) -> None:
        """Find or create the run. Raises what MLflow raises."""
        self._client = MlflowClient(tracking_uri=config.get("trackingUri"))
        name = str(config.get("experiment", "rljob"))
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found is not None else self._client.create_experiment(name)
        uid = job.uid or job.name
        runs = self._client.search_runs([experiment], f"tags.`{TAG}` = '{uid}'", max_results=1)
        if runs:
            self._run = runs[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {TAG: uid, "rljob.namespace": job.namespace, **config.get("tags", {})}
        self._run = self._client.create_run(experiment, run_name=job.name, tags=tags).info.run_id
        params = [Param(path, str(value)[:LONGEST_PARAM]) for path, value in flattened(job.spec, "spec")]
        for first in range(0, len(params), BATCH):
            self._client.log_batch(self._run, params=params[first : first + BATCH])

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """Log the round as one step."""
        now = int(time.time() * 1000)
        self._client.log_batch(self._run, [Metric(name, value, now, number) for name, value in metrics.items()])

    def samples(self, number: int, records: Sequence[Mapping[str, Any]]) -> None:
        """Log the samples of a round as a table, `samples/round-NUMBER.json`."""
        rows = [row_of(record) for record in records]
        table = {name: [row[place] for row in rows] for place, name in enumerate(COLUMNS)}
        self._client.log_dict(self._run, table, f"samples/round-{number:06d}.json")

    def event(self, event: JobEvent) -> None:
        """Log an event as a tag, `rljob.event.NAME`; the last one of each name stays."""
        self._client.set_tag(self._run, f"rljob.event.{event.name}", f"round {event.round}: {event.message}")

    def close(self) -> None:
        """Mark the run as finished; a later coordinator marks it as running again."""
        self._client.set_terminated(self._run, "FINISHED")


def flattened(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each leaf of an object; a list is a leaf."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flattened(inner, f"{path}.{key}")
    else:
        yield path, value
