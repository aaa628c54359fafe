"""`rljob bench reward-timeout`: the adaptive timeout against a fixed one, on real programs in the real sandbox.

Problems with a quick or a slow right answer each get groups of responses, round after round: right programs, wrong
ones, and some that never end. Both runs score the same responses in the same order; the fixed one has Tmin = Tmax.
Figures:

- `cpu_saved`: processor seconds of the fixed run over those of the adaptive one. The limit knows every program: what
  never ends costs Tmin, the rest what it takes.
- `reward_time`: the same of the wall clock from first to last response: what a round waits for at most.
- `right_lost`: right programs that the adaptive run scored 0 and the fixed one did not.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rljob_api.spec.rewards import CodeReward, RewardTimeout
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.rewards.code_scorer import CodeScorer
from rljob_runtime.rewards.rules import CodeRule
from rljob_runtime.sandbox.program import Program, Run
from rljob_runtime.sandbox.sandbox import Sandbox

RIGHT, WRONG, ENDLESS = "right", "wrong", "endless"


@dataclass(frozen=True)
class Plan:
    """What is scored.

    At the defaults a response costs about 2.1 s with a fixed timeout; PolyTrace's rllm run shows 0.58 to 1.95 s a
    response.
    """

    problems: int = 5
    rounds: int = 2
    responses: int = 8
    slow_share: float = 0.4
    """Share of the problems whose right programs take `slow_seconds` and not `quick_seconds`."""
    quick_seconds: float = 0.05
    slow_seconds: float = 1.6
    wrong_share: float = 0.4
    endless_share: float = 0.05
    """Share of the responses that never end, exact for each seed."""
    max_seconds: float = 30.0
    processes: int = 2


QUICK = Plan(problems=3, slow_share=1 / 3, slow_seconds=0.6, endless_share=1 / 12, max_seconds=8.0)


@dataclass(frozen=True)
class Response:
    """A program for a problem. `seconds` is how long it computes."""

    problem: int
    kind: str
    seconds: float

    @property
    def text(self) -> str:
        """Return the response as a model would give it."""
        if self.kind == ENDLESS:
            source = "while True: pass"
        else:
            source = f"import time\nwhile time.process_time() < {self.seconds:.3f}: pass\nprint({self.kind!r})"
        return f"```python\n{source}\n```"


def reward_timeout(*, quick: bool, seed: int) -> dict[str, Any]:
    """Measure both. Raises `SandboxUnavailable` where there is no sandbox."""
    plan = QUICK if quick else Plan()
    responses = draw(plan, random.Random(seed))
    fixed, adaptive = asyncio.run(_measure(plan, responses))
    useful = sum(each.seconds for each in responses if each.kind != ENDLESS)
    least = RewardTimeout().min_seconds * sum(each.kind == ENDLESS for each in responses)
    lost = sum(a < b for a, b, each in zip(adaptive.scores, fixed.scores, responses, strict=True) if each.kind == RIGHT)
    anchor = "RollPacker §4.3: 1.6x"
    return {
        "bench": "reward-timeout",
        "seed": seed,
        "settings": {**asdict(plan), "quick": quick},
        "figures": [
            figure("cpu_saved", fixed.cpu / adaptive.cpu, 1.6, anchor, fixed.cpu / (useful + least)),
            figure("reward_time", fixed.wall / adaptive.wall, 1.6, anchor),
            figure("right_lost", lost, 0, "the fixed timeout in the same run", 0, unit="responses", better="lower"),
        ],
        "rows": [row for outcome in (fixed, adaptive) for row in outcome.rows(responses)],
    }


def draw(plan: Plan, chance: random.Random) -> list[Response]:
    """Draw the responses of all rounds, in the order in which they arrive."""
    slow = set(chance.sample(range(plan.problems), round(plan.slow_share * plan.problems)))
    total = plan.rounds * plan.problems * plan.responses
    endless = round(plan.endless_share * total)
    wrong = round(plan.wrong_share * total)
    kinds = [ENDLESS] * endless + [WRONG] * wrong + [RIGHT] * (total - endless - wrong)
    chance.shuffle(kinds)
    responses = []
    for _ in range(plan.rounds):
        order = [problem for problem in range(plan.problems) for _ in range(plan.responses)]
        chance.shuffle(order)
        for problem in order:
            typical = plan.slow_seconds if problem in slow else plan.quick_seconds
            responses.append(Response(problem, kinds.pop(), typical * chance.uniform(0.8, 1.2)))
    return responses


@dataclass
class _Outcome:
    name: str
    scores: list[float]
    each_cpu: list[float]
    wall: float

    @property
    def cpu(self) -> float:
        return sum(self.each_cpu)

    def rows(self, responses: Sequence[Response]) -> list[dict[str, Any]]:
        """One for each kind of program."""
        rows = []
        for kind in (RIGHT, WRONG, ENDLESS):
            of_kind = [place for place, response in enumerate(responses) if response.kind == kind]
            cpu = sum(self.each_cpu[place] for place in of_kind)
            passed = sum(self.scores[place] for place in of_kind)
            rows.append(
                {"timeout": self.name, "kind": kind, "responses": len(of_kind), "passed": passed, "cpu_seconds": cpu}
            )
        return rows


async def _measure(plan: Plan, responses: Sequence[Response]) -> tuple[_Outcome, _Outcome]:
    adaptive = RewardTimeout(max_seconds=plan.max_seconds)
    fixed = RewardTimeout(min_seconds=plan.max_seconds, max_seconds=plan.max_seconds)
    # In turns, the fixed one first: nothing is learned from one run for the other.
    return await _score("fixed", plan, responses, fixed), await _score("adaptive", plan, responses, adaptive)


async def _score(name: str, plan: Plan, responses: Sequence[Response], timeout: RewardTimeout) -> _Outcome:
    """All responses of a round together, then the next round, as a job does."""
    sandbox = _Metered(plan.processes)
    rule = CodeRule("code", settings=CodeReward(parallelism=plan.processes), timeout=timeout)
    scores: list[float] = []
    size = plan.problems * plan.responses
    async with CodeScorer(rule, sandbox) as scorer:
        sandbox.cpu.clear()
        began = time.monotonic()
        for start in range(0, len(responses), size):
            batch = enumerate(responses[start : start + size], start)
            scores += await asyncio.gather(*(_one(scorer, place, each) for place, each in batch))
        wall = time.monotonic() - began
    return _Outcome(name, scores, [sandbox.cpu[str(place)] for place in range(len(responses))], wall)


async def _one(scorer: CodeScorer, place: int, response: Response) -> float:
    tests = [{"stdin": str(place), "stdout": RIGHT}]
    return await scorer.score(Prompt(response.problem, "", (), "", {"tests": tests}), response.text)


class _Metered(Sandbox):
    """Notes the processor time of each program, by what it was given to read."""

    def __init__(self, processes: int) -> None:
        super().__init__(processes)
        self.cpu: defaultdict[str, float] = defaultdict(float)

    async def run(self, program: Program) -> Run:
        run = await super().run(program)
        self.cpu[program.stdin] += run.cpu_seconds  # a shadow run is a second one
        return run
