"""The store of groups against a plain model of it: any order of calls, crashes and rewinds in between."""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rljob_runtime.coordinator.store.records import Boundary, Pool, Tokens
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.tables.groups import NotOpen
from rljob_runtime.coordinator.trainer.recovery import snapshot_at
from rljob_runtime.protocols.trajectory import Cursor, FinishReason, Lease, PromptKey, Response, TrajectoryKey
from rljob_runtime.scheduling.round_plan import PromptOutcome
from tests.support.examples import examples

RESPONSES = 2
MACHINES = st.sampled_from(["rollout-0", "rollout-1"])
TOKENS = st.integers(0, 3)
PICK = st.randoms(use_true_random=False)


@dataclass
class Sample:
    attempt: int = 0
    failures: int = 0
    replica: str | None = None
    finish: FinishReason | None = None
    reward: float | None = None
    tokens: list[int] = field(default_factory=list)
    gone: bool = False


@dataclass
class Draw:
    prompt: PromptKey
    number: int
    version: int | None
    replica: str | None
    samples: list[Sample]
    ready: int | None = None
    step: int | None = None
    outcome: PromptOutcome | None = None

    def drop_tokens(self) -> None:
        for sample in self.samples:
            sample.gone = True


class Experience(RuleBasedStateMachine):
    """`self.draws`: every draw in its order. `self.queue`, `self.updates`: as the store tells them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.draws: list[Draw] = []
        self.queue: list[PromptKey] = []
        self.updates: dict[int, list[PromptKey]] = {}
        self.position = self.ready = self.step = self.began = 0
        self.version = 0
        self.token = 0
        self.store = Store(self.folder / "state.db", "uid-1")

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    # --- the model ---

    def open(self) -> list[Draw]:
        return [draw for draw in self.draws if draw.outcome is None]

    def free(self) -> list[Draw]:
        """Open and not assigned."""
        return [draw for draw in self.open() if draw.step is None]

    def under_way(self) -> list[tuple[TrajectoryKey, Sample]]:
        """Of groups that are not ready."""
        return [
            (TrajectoryKey(draw.prompt, number), sample)
            for draw in self.open()
            if draw.ready is None
            for number, sample in enumerate(draw.samples)
        ]

    def generating(self) -> list[tuple[TrajectoryKey, Sample]]:
        return [(key, sample) for key, sample in self.under_way() if sample.finish is None]

    def of(self, prompt: PromptKey) -> Draw:
        return next(draw for draw in reversed(self.draws) if draw.prompt == prompt)

    def new_tokens(self, key: TrajectoryKey, sample: Sample, count: int) -> Tokens:
        made = list(range(self.token, self.token + count))
        self.token += count
        start = len(sample.tokens)
        sample.tokens += made
        return Tokens(key, start, made, [-token / 4 for token in made])

    # --- what happens ---

    @initialize()
    def begin(self) -> None:
        self.store.start_at(Boundary(0, Cursor()), pool=Pool())
        self.publish()

    @rule()
    def publish(self) -> None:
        self.version += 1
        self.store.versions.publish(self.version, self.step)

    @rule(replica=MACHINES, again=st.integers(0, 2), fresh=st.integers(1, 2))
    def draw(self, replica: str, again: int, fresh: int) -> None:
        prompts = self.queue[:again] + [PromptKey(0, self.position + number) for number in range(fresh)]
        self.queue, self.position = self.queue[again:], self.position + fresh
        expected = {}
        for prompt in prompts:
            earlier = [draw for draw in self.draws if draw.prompt == prompt]
            attempts = [
                max([draw.samples[number].attempt for draw in earlier if draw.samples], default=0)
                for number in range(RESPONSES)
            ]
            expected |= {TrajectoryKey(prompt, number): attempt for number, attempt in enumerate(attempts) if attempt}
            samples = [Sample(attempt) for attempt in attempts]
            self.draws.append(Draw(prompt, len(earlier), self.version, replica, samples))
        known = self.store.experience.draw(prompts, Cursor(0, self.position), self.version, replica, RESPONSES)
        assert known == expected

    @precondition(generating)
    @rule(pick=PICK, replica=MACHINES)
    def launch(self, pick, replica: str) -> None:
        key, sample = pick.choice(self.generating())
        sample.attempt, sample.replica = sample.attempt + 1, replica
        self.store.experience.launched([(key, Lease(replica, sample.attempt))])

    @precondition(generating)
    @rule(counts=st.lists(TOKENS, min_size=1, max_size=4))
    def append(self, counts: list[int]) -> None:
        pairs = zip(self.generating(), counts, strict=False)
        self.store.experience.append([self.new_tokens(key, sample, count) for (key, sample), count in pairs])

    @precondition(generating)
    @rule(pick=PICK, replica=MACHINES)
    def move(self, pick, replica: str) -> None:
        key, sample = pick.choice(self.generating())
        offset = pick.randint(0, len(sample.tokens))
        sample.attempt, sample.replica = sample.attempt + 1, replica
        del sample.tokens[offset:]
        self.store.experience.move(key, Lease(replica, sample.attempt), offset)

    @precondition(generating)
    @rule(pick=PICK, count=TOKENS, reason=st.sampled_from(FinishReason), score=st.booleans())
    def finish(self, pick, count: int, reason: FinishReason, score: bool) -> None:
        key, sample = pick.choice(self.generating())
        tokens = self.new_tokens(key, sample, count)
        sample.finish = reason
        response = Response(key, sample.attempt, 0, (), (), reason, sample.replica or "")
        self.store.experience.finish([tokens], [response])
        if score:
            self.score(1)

    @precondition(generating)
    @rule(pick=PICK)
    def finish_group(self, pick) -> None:
        """What is left of one, with its rewards."""
        prompt = pick.choice(self.generating())[0].prompt
        for key, sample in self.generating():
            if key.prompt == prompt:
                sample.finish = FinishReason.STOP
                response = Response(key, sample.attempt, 0, (), (), sample.finish, sample.replica or "")
                self.store.experience.finish([self.new_tokens(key, sample, 1)], [response])
        self.score(8)

    @rule(count=st.integers(1, 4))
    def score(self, count: int) -> None:
        waiting = [(key, one) for key, one in self.under_way() if one.finish is not None and one.reward is None]
        ready = []
        for key, sample in waiting[:count]:
            sample.reward = key.sample + 0.5
            draw = self.of(key.prompt)
            if all(one.reward is not None for one in draw.samples):
                self.ready += 1
                draw.ready = self.ready
                ready.append(key.prompt)
        assert self.store.experience.score([(key, key.sample + 0.5) for key, _ in waiting[:count]]) == tuple(ready)

    @precondition(under_way)
    @rule(pick=PICK)
    def restart(self, pick) -> None:
        key, sample = pick.choice(self.under_way())
        sample.failures, sample.finish, sample.reward, sample.tokens = sample.failures + 1, None, None, []
        self.store.experience.restart(key, sample.failures)

    @precondition(lambda self: len(self.free()) > 2)
    @rule(pick=PICK, outcome=st.sampled_from([PromptOutcome.FILTERED, PromptOutcome.REQUEUED]))
    def end(self, pick, outcome: PromptOutcome) -> None:
        draw = pick.choice(self.free())
        draw.outcome = outcome
        draw.drop_tokens()
        if outcome is PromptOutcome.REQUEUED:
            self.queue.append(draw.prompt)
        self.store.experience.end([draw.prompt], outcome, "VersionGone")

    def ready_groups(self) -> list[Draw]:
        return [draw for draw in self.free() if draw.ready is not None]

    @precondition(ready_groups)
    @rule(count=st.integers(1, 2))
    def assign(self, count: int) -> None:
        """And a second time for the same update."""
        chosen = self.ready_groups()[-count:]
        for draw in chosen:
            draw.step = self.step + 1
            self.updates.setdefault(draw.step, []).append(draw.prompt)
        self.store.experience.assign(self.step + 1, [draw.prompt for draw in chosen])

    @precondition(lambda self: self.step + 1 in self.updates)
    @rule()
    def close_update(self) -> None:
        self.step += 1
        for draw in self.open():
            if draw.step == self.step:
                draw.outcome = PromptOutcome.TRAINED
        self.store.experience.close_update(Boundary(self.step, Cursor(0, self.position)))

    @precondition(ready_groups)
    @rule()
    def update(self) -> None:
        self.assign(2)
        self.close_update()

    @rule(back=st.integers(0, 2))
    def forget(self, back: int) -> None:
        step = self.step - back
        for draw in self.draws:
            if draw.outcome is PromptOutcome.TRAINED and draw.step is not None and draw.step <= step:
                draw.drop_tokens()
        self.store.experience.forget(step)

    @precondition(lambda self: self.updates)
    @rule(back=st.integers(0, 3))
    def rewind(self, back: int) -> None:
        if self.step - back < self.began:
            assert not self.store.rewind(self.step - back)
            return
        self.step -= back
        for step in sorted(step for step in self.updates if step > self.step):
            for prompt in self.updates.pop(step):
                draw = self.of(prompt)
                draw.step = None
                lost = any(sample.gone for sample in draw.samples)
                draw.outcome = PromptOutcome.REQUEUED if lost else None
                if lost:
                    self.queue.append(prompt)
        assert self.store.rewind(self.step)

    @rule()
    def crash(self) -> None:
        """What was committed is there again; the file is copied as a killed process leaves it."""
        left = self.folder / "left"
        left.mkdir()
        for file in self.folder.glob("state.db*"):
            shutil.copy(file, left)
        self.store.close()
        for file in self.folder.glob("state.db*"):
            file.unlink()
        for file in left.iterdir():
            file.rename(self.folder / file.name)
        left.rmdir()
        self.store = Store(self.folder / "state.db", "uid-1")

    @precondition(lambda self: self.began < self.step and len(self.draws) > 4)
    @rule()
    def lose_the_store(self) -> None:
        """A new history begins with what a checkpoint of now keeps."""
        snapshot = snapshot_at(self.store, self.step)
        self.store.start_at(Boundary(self.step, snapshot.cursor), pool=Pool(snapshot.cursor, snapshot.queue))
        self.queue = list(self.unsettled())
        self.draws = [Draw(prompt, 0, None, None, [], outcome=PromptOutcome.REQUEUED) for prompt in self.queue]
        self.updates, self.ready, self.began = {}, 0, self.step

    # --- what holds at any time ---

    def unsettled(self) -> tuple[PromptKey, ...]:
        return tuple(
            draw.prompt
            for draw in self.draws
            if draw.outcome in (None, PromptOutcome.REQUEUED) and draw is self.of(draw.prompt)
        )

    @invariant()
    def the_store_is_the_model(self) -> None:
        experience = self.store.experience
        assert experience.cursor() == Cursor(0, self.position)
        assert experience.requeued() == tuple(self.queue)
        assert experience.unsettled() == self.unsettled()
        kept = [(g.prompt, g.draw, g.version, g.replica, g.ready, g.step) for g in experience.open_groups()]
        assert kept == [(d.prompt, d.number, d.version, d.replica, d.ready, d.step) for d in self.open()]
        for draw, group in zip(self.open(), experience.open_groups(), strict=True):
            assert [
                (one.attempt, one.failures, one.replica, one.finish, one.reward, one.tokens) for one in group.samples
            ] == [
                (one.attempt, one.failures, one.replica, one.finish, one.reward, len(one.tokens))
                for one in draw.samples
            ]
            assert experience.groups([draw.prompt]) == (group,)
        for step in range(1, self.step + 3):
            assert experience.assigned(step) == tuple(self.updates.get(step, ()))

    @invariant()
    def tokens_are_what_was_appended(self) -> None:
        for draw in self.open():
            for number, sample in enumerate(draw.samples):
                partial = self.store.experience.partial(TrajectoryKey(draw.prompt, number))
                assert partial.token_ids.tolist() == sample.tokens
                assert partial.logprobs.tolist() == [-token / 4 for token in sample.tokens]
                assert (partial.lease.attempt, partial.weight_version) == (sample.attempt, draw.version)
            if draw.ready is not None:
                scored = self.store.experience.responses(draw.prompt)
                assert [list(one.response.token_ids) for one in scored] == [one.tokens for one in draw.samples]
                assert [one.reward for one in scored] == [one.reward for one in draw.samples]

    @invariant()
    def nothing_is_kept_of_what_ended(self) -> None:
        if self.draws and self.draws[-1].outcome is not None:
            with pytest.raises(NotOpen):
                self.store.experience.partial(TrajectoryKey(self.draws[-1].prompt, 0))
        held = self.store._db.execute("SELECT ifnull(SUM(length(tokens) / 4), 0) FROM experience_chunks").fetchone()[0]
        assert held == sum(len(one.tokens) for draw in self.draws for one in draw.samples if not one.gone)


TestExperience = Experience.TestCase
TestExperience.settings = settings(
    max_examples=examples(60), stateful_step_count=50, suppress_health_check=[HealthCheck.too_slow]
)
