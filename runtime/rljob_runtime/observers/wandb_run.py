"""Weights & Biases: a run with the job's uid, which a later coordinator resumes.

`config`: arguments of `wandb.init`, as project, entity, group, tags, mode. The key comes from the variable
`WANDB_API_KEY`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import wandb
from wandb.errors import AuthenticationError, CommError, UsageError

from rljob_api.spec.resources import Samples
from rljob_runtime.observers.protocol import JobEvent, ObservedJob
from rljob_runtime.observers.sample_rows import COLUMNS, row_of
from rljob_runtime.observers.wandb_files import TableFiles

OURS = {"id", "resume", "dir", "config", "settings"}
"""Arguments that `config` cannot set."""
KEY = "WANDB_API_KEY"
MOST_REASON = 300
"""Characters of W&B's own message that are repeated."""
_ABOUT_THE_KEY = re.compile(r"error 40[13]\b|api[ _]key", re.IGNORECASE)
"""W&B has one type for all answers of its server, and one for all mistakes of its user."""


class KeyRefused(Exception):
    """W&B accepts no key, or not this one. The message says which variable holds it."""


class WandbRun:
    """Logs each round to one run."""

    def __init__(self, job: ObservedJob, config: Mapping[str, Any]) -> None:
        """Start or resume the run.

        Raises `ValueError` for an argument that is ours, `KeyRefused`, and what W&B raises.
        """
        if taken := sorted(OURS & set(config)):
            raise ValueError(f"config of the observer wandb cannot set {', '.join(taken)}")
        self._files = TableFiles(job.folder, Samples.model_validate(job.spec.get("samples", {})).keep_rounds)
        arguments = {"project": "rljob", "name": job.name, "group": job.namespace, **config}
        # Without its console capture and machine statistics: the process is the coordinator's.
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
        with _key_named():
            self._run = wandb.init(
                id=job.uid or job.name,
                resume="allow",
                dir=str(job.folder),
                config=dict(job.spec),
                settings=settings,
                **arguments,
            )
        # W&B drops a step that is not new. Rounds come again after a rewind, so they are a metric.
        self._run.define_metric("*", step_metric="round")

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """Log the round."""
        self._run.log({"round": number, **metrics})

    def samples(self, number: int, records: Sequence[Mapping[str, Any]]) -> None:
        """Log the samples of a round as a table. Tables of rounds before `samples.keepRounds` are deleted here."""
        table = wandb.Table(columns=list(COLUMNS), data=[row_of(record) for record in records])
        with self._files.collected():
            self._run.log({"round": number, "samples": table})
        self._files.delete_old()

    def event(self, event: JobEvent) -> None:
        """Log an event as a text."""
        self._run.log({"round": event.round, "event": f"{event.name}: {event.message}"})

    def close(self) -> None:
        """Finish the run; a later one with its id resumes it."""
        self._run.finish(exit_code=0)


@contextlib.contextmanager
def _key_named() -> Iterator[None]:
    """Raise `KeyRefused` in place of W&B's errors about the key: they come in three types, and name no variable."""
    try:
        yield
    except (CommError, UsageError) as error:
        if not isinstance(error, AuthenticationError) and _ABOUT_THE_KEY.search(str(error)) is None:
            raise
        reason = " ".join(str(error).split())
        raise KeyRefused(f"W&B refuses the key in {KEY}: {reason[:MOST_REASON]}; set {KEY} to a valid one") from error
