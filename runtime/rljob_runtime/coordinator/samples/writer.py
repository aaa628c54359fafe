"""Sample writer: turns the samples that wait in the store into files, one round after the other.

It runs beside the rounds and none waits for it: texts are decoded and files are written in threads, some responses at
a time. A round whose file cannot be written loses its samples, and the job goes on with a warning."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Protocol, TypeVar

from rljob_api.spec.resources import Samples
from rljob_api.status import RoundReport, StatusWarning
from rljob_runtime.coordinator.core.async_utils import Apart, in_daemon_thread, wait_for_event
from rljob_runtime.coordinator.samples.length_writer import LengthWriter
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.coordinator.store.tables.kept_samples import ROUNDS_DUE, Advantages, KeptSample, SampleRules
from rljob_runtime.evaluation import EvaluationResult
from rljob_runtime.gateway.text.tool_calls import parse_tool_calls
from rljob_runtime.protocols import PeerError, TrainReport
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.samples import EvaluationSampleFolder, Sample, SampleFolder, delete_abandoned
from rljob_runtime.samples.episode import SampleCall, SampleTurn

log = logging.getLogger(__name__)

T = TypeVar("T")

SAMPLES_NOT_WRITTEN = "SamplesNotWritten"
"""The reason of the warning that the writer reports."""

READ_BATCH = 64
"""Samples in one call to the store, so that other calls do not wait long."""
DECODED_BATCH = 16_384
"""Tokens after which the thread of texts is free for others: rewards wait for it too."""
CLOSE_SECONDS = 10.0


class Texts(Protocol):
    """Texts of prompts and responses. Calls may take long."""

    def messages(self, key: PromptKey) -> Sequence[Mapping[str, str]]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


class PromptTexts(Protocol):
    """Texts and lengths of prompts and responses; `coordinator.inputs.ObservedPrompts` implements it."""

    async def prompt_tokens(self, keys: Sequence[PromptKey]) -> list[int]: ...

    async def read_texts(self, work: Callable[[Texts], T]) -> T:
        """Run `work` on the texts outside of the event loop."""
        ...


@dataclass(frozen=True)
class DueFile:
    """A file to write: the samples of a round, or of an evaluation of the weights after it."""

    step: int
    evaluation: str | None = None

    @classmethod
    def all_of(cls, store: Store) -> list[DueFile]:
        """Return the files that wait, each kind by its round."""
        evaluations = [cls(step, name) for step, name in store.evaluations.samples.due()]
        return [*map(cls, store.samples.due()), *evaluations]

    def folder(self, job: Path) -> SampleFolder:
        """Return the folder of the file."""
        return SampleFolder(job) if self.evaluation is None else EvaluationSampleFolder(job, self.evaluation)

    def read(self, first: int, store: Store) -> list[KeptSample]:
        """Return some samples, from `first` on."""
        if self.evaluation is None:
            return store.samples.read(self.step, first, READ_BATCH)
        return store.evaluations.samples.read(self.step, self.evaluation, first, READ_BATCH)

    def written(self, store: Store) -> None:
        """Delete the samples in the store."""
        if self.evaluation is None:
            store.samples.written(self.step)
        else:
            store.evaluations.samples.written(self.step, self.evaluation)


class SampleWriter:
    """Writes the samples of one job. `spec` reads the present `spec.samples`, which may change. `apart` writes files.

    Call `use` before the first round, `run` beside the coordinator, and `close` after it. `round_closed` is a
    `RoundObserver`."""

    def __init__(
        self,
        folder: Path,
        store: StoreAccess,
        seed: int,
        advantages: Advantages,
        spec: Callable[[], Awaitable[Samples]],
        apart: Apart = in_daemon_thread,
    ) -> None:
        self._folder = folder
        self._apart = apart
        self._lengths = LengthWriter(folder, store, apart)
        self._store = store
        self._seed = seed
        self._advantages = advantages
        self._spec = spec
        self.on_samples: Callable[[int, Sequence[Sample]], None] = lambda number, samples: None
        """Called with the samples of each round, before they are written. It must not block."""
        self._keep = 1
        self._prompts: PromptTexts | None = None
        self._due = asyncio.Event()
        self._writing = asyncio.Lock()
        self._waiting = 0
        """Rounds that closed since all files were written."""
        self._evaluations = 0
        """Evaluations that ended since then."""
        self._unwritten, self._taken = 0, 0
        """Of the present pass: the files that it has still to write, and the rounds and evaluations that it covers."""
        self._abandoned_may_exist = True
        """Whether there may be files of evaluations that a rewind has abandoned."""
        self._newest: int | None = None
        """The last round that closed."""
        self._patience = CLOSE_SECONDS
        self._late = 0
        """Files that were not written in time at the end."""
        self._finished = False
        self._lost, self._why = 0, ""

    async def use(self, spec: Samples) -> None:
        """Keep samples by these settings from the next round that closes."""
        self._keep = spec.keep_rounds
        rules = SampleRules(spec.count, self._seed, self._advantages)
        await self._store.do(lambda store: store.samples.use(rules))

    def use_prompts(self, prompts: PromptTexts) -> None:
        """Begin with files: the tokenizer is there."""
        self._prompts = prompts
        self._due.set()

    def round_closed(self, report: RoundReport, trained: TrainReport) -> StatusWarning | None:
        """Write the round soon. Return a warning while samples are missing."""
        self._waiting += 1
        if self._newest is None or report.round <= self._newest:
            self._abandoned_may_exist = True
        self._newest = report.round
        self._lengths.closed(report.round)
        self._due.set()
        return self.problem()

    def evaluated(self, result: EvaluationResult) -> None:
        """Write the samples of an evaluation soon."""
        self._evaluations += 1
        self._due.set()

    def problem(self) -> StatusWarning | None:
        """Return a warning if the last file could not be written, or too many wait."""
        dropped = max(0, self._waiting - ROUNDS_DUE)
        missing = []
        if self._why:
            missing.append(f"{self._lost} files of samples could not be written ({self._why})")
        if dropped:
            missing.append(f"the samples of {dropped} rounds were not kept: the volume does not answer")
        if self._late:
            missing.append(
                f"{self._late} files of samples and lengths were not written within {self._patience:g} s of the job's "
                "end: the volume does not answer. They stay in the store until a coordinator continues the job"
            )
        if not missing:
            return None
        cure = f"Check that {SampleFolder(self._folder).path} can be written to and has space."
        if not self._finished:
            cure = f"Training continues. {cure}"
        return StatusWarning(reason=SAMPLES_NOT_WRITTEN, message=f"{'; '.join(missing)}. {cure}"[:2048])

    async def run(self) -> None:
        """Write rounds until cancelled."""
        while True:
            await wait_for_event(self._due, None)
            await self._write_due()
            try:
                await self.use(await self._spec())
            except PeerError as error:
                log.warning("spec.samples cannot be read, the last one is used: %s", error)

    async def finish(self, seconds: float = CLOSE_SECONDS) -> StatusWarning | None:
        """Write the files that wait, for at most `seconds`. Return a warning about the rest.

        Call it at the end of the job: no coordinator may come that writes them.
        """
        self._finished, self._patience = True, seconds
        try:
            await self._complete(seconds)
        except TimeoutError:
            self._late = max(1, self._unwritten + self._waiting + self._evaluations - self._taken)
        return self.problem()

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write the files that wait, for at most `seconds`. The rest waits for the next coordinator."""
        if not self._finished:
            with contextlib.suppress(TimeoutError):
                await self._complete(seconds)

    async def _complete(self, seconds: float) -> None:
        if self._prompts is None:
            # Without them no file can be written. The next coordinator counts what was filtered.
            return
        async with asyncio.timeout(seconds):
            await self._lengths.end()
            await self._write_due()

    async def _write_due(self) -> None:
        if self._prompts is None:
            return
        async with self._writing:
            closed, ended = self._waiting, self._evaluations
            due = await self._store.do(DueFile.all_of)
            self._unwritten, self._taken = len(due), closed + ended
            await self._delete_abandoned()
            for one in due:
                await self._write(one, self._prompts)
                self._unwritten -= 1
            self._waiting, self._evaluations = self._waiting - closed, self._evaluations - ended
            self._taken = 0
            await self._lengths.write_due(self._prompts.prompt_tokens, self._keep)

    async def _write(self, due: DueFile, prompts: PromptTexts) -> None:
        """Write a file, then delete its samples in the store."""
        try:
            samples = await self._texts(due, prompts)
            if due.evaluation is None:
                self.on_samples(due.step, samples)
            await self._apart(lambda: due.folder(self._folder).write(due.step, samples, self._keep), "samples")
            self._why = ""
        except Exception as error:  # a bad folder, a full disk, a prompt or a text that cannot be decoded
            self._lost, self._why = self._lost + 1, str(error) or type(error).__name__
            of = "" if due.evaluation is None else f" of evaluation {due.evaluation}"
            log.warning("the samples%s of round %d are not written: %s", of, due.step, self._why)
        await self._store.do(due.written)

    async def _delete_abandoned(self) -> None:
        """Delete files of evaluations that have no result any more.

        Such an evaluation may end again much later, or never if the spec does not name it any more.
        """
        if not self._abandoned_may_exist:
            return
        results, steps = await self._store.do(lambda store: (store.evaluations.steps(), store.boundaries.steps()))
        known = {*steps, *chain.from_iterable(results.values())}
        if not known:
            return
        try:
            deleted = await self._apart(partial(delete_abandoned, self._folder, results, min(known)), "samples")
        except OSError as error:
            log.warning("sample files of abandoned evaluations are not deleted: %s", error)
        else:
            self._abandoned_may_exist = False
            if deleted:
                log.info("%d sample files of abandoned evaluations are deleted", deleted)

    async def _texts(self, due: DueFile, prompts: PromptTexts) -> list[Sample]:
        found: list[Sample] = []
        while part := await self._store.do(partial(due.read, len(found))):
            for few in parts(part):
                found += await prompts.read_texts(partial(_with_texts, few))
            if len(part) < READ_BATCH:
                break
        return found


def parts(kept: Sequence[KeptSample]) -> Iterator[list[KeptSample]]:
    """Divide samples, in their order, into parts of `DECODED_BATCH` tokens at most; a longer one is a part alone."""
    part: list[KeptSample] = []
    tokens = 0
    for one in kept:
        tokens += _tokens(one)
        if part and tokens > DECODED_BATCH:
            yield part
            part, tokens = [], _tokens(one)
        part.append(one)
    if part:
        yield part


def _tokens(kept: KeptSample) -> int:
    """Return the tokens that become text."""
    turns = () if kept.sample.episode is None else kept.sample.episode.turns
    return len(kept.token_ids) + sum(len(turn.given_ids) + len(turn.sampled_ids) for turn in turns)


def _with_texts(kept: Sequence[KeptSample], texts: Texts) -> list[Sample]:
    return [_with_text(one, texts) for one in kept]


def _with_text(kept: KeptSample, texts: Texts) -> Sample:
    sample = kept.sample
    messages = texts.messages(PromptKey.parse(sample.prompt_id))
    if sample.episode is not None:
        turns = [_turn_with_texts(turn, texts) for turn in sample.episode.turns]
        sample = replace(sample, episode=replace(sample.episode, turns=tuple(turns)))
    return replace(sample, prompt=tuple(messages), response=texts.decode(kept.token_ids))


def _turn_with_texts(turn: SampleTurn, texts: Texts) -> SampleTurn:
    """Return a turn with its texts in place of its tokens. What messages say is not repeated as template text."""
    sampled = texts.decode(turn.sampled_ids)
    given = "" if turn.messages or not turn.given_ids else texts.decode(turn.given_ids)
    calls = turn.calls or tuple(SampleCall(one.name, one.arguments) for one in parse_tool_calls(sampled).calls)
    return replace(turn, given=given, sampled=sampled, calls=calls, given_ids=(), sampled_ids=())
