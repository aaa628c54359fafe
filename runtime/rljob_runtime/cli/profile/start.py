"""Start of a profile: the tensor parallel size at which a job should start, from a profile and the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from rljob_api import RLJob
from rljob_runtime.cli.screen import say
from rljob_runtime.perf_model.fitting import Fit
from rljob_runtime.perf_model.profile import Start
from rljob_runtime.scheduling.round_planner.initial_tp import best_tp_size, simulate_tp_sizes
from rljob_runtime.scheduling.round_planner.round_simulator import EngineFleet, PromptDemand
from rljob_runtime.workloads import batch, open_workload


@dataclass(frozen=True)
class JobRound:
    """A job, and the lengths of a round of its shape. `lengths`: their origin."""

    job: RLJob
    lengths: str
    asked: tuple[PromptDemand, ...]

    @classmethod
    def of(cls, job: RLJob, workload: str | None) -> JobRound:
        """Make the round of a job.

        `workload` is as in `workloads.open_workload`, cut at the job's limits. With None, every prompt and response has
        the largest length that the job allows. Raises `TraceError`.
        """
        algorithm, data = job.spec.algorithm, job.spec.data
        prompts, responses = algorithm.prompts_per_round, algorithm.responses_per_prompt
        if workload is None:
            one = PromptDemand(data.max_prompt_tokens, (data.max_response_tokens,) * responses)
            return cls(job, "maxResponseTokens", (one,) * prompts)
        drawn = batch(open_workload(workload, data.seed), 0, prompts, responses)
        asked = tuple(
            PromptDemand(
                min(data.max_prompt_tokens, max(1, int(prompt.input_tokens))),
                tuple(min(data.max_response_tokens, max(1, one.output_tokens)) for one in prompt.responses),
            )
            for prompt in drawn.prompts
        )
        return cls(job, workload, asked)

    def start(self, fits: Mapping[int, Fit]) -> Start | str:
        """Return the best of these sizes, or why none is named.

        Sizes that do not divide a machine of the job are left out.
        """
        rollout, algorithm = self.job.spec.rollout, self.job.spec.algorithm
        most = rollout.engine_options.max_concurrent_requests
        stages = {
            size: EngineFleet(fitted.latency, rollout.machines * (rollout.slots // size), fitted.kv_tokens, most)
            for size, fitted in fits.items()
            if rollout.slots % size == 0
        }
        if len(stages) < 2:
            measured = ", ".join(map(str, sorted(fits)))
            return (
                f"No tensor parallel size to start at is named: of those measured ({measured}) the job's machines of "
                f"{rollout.slots} can have {len(stages)}; two or more would be right (--tensor-parallel)"
            )
        played = simulate_tp_sizes(stages, self.asked, algorithm.responses_per_prompt)
        return Start(
            tensor_parallel=best_tp_size(played),
            machines=rollout.machines,
            prompts=algorithm.prompts_per_round,
            responses=algorithm.responses_per_prompt,
            lengths=self.lengths,
            rounds=played,
        )


def show(console: Console, start: Start | str, rollout_size: int) -> None:
    """Print the start. `rollout_size`: the job's tensorParallelSize."""
    if isinstance(start, str):
        say(console, start)
        return
    table = Table(title=f"a round of {start.prompts} x {start.responses} on {start.machines} machines, predicted")
    for column in ("TP", "replicas", "seconds", "preemptions"):
        table.add_column(column, justify="right")
    for one in start.rounds:
        seconds = "does not fit" if one.seconds is None else f"{one.seconds:.3g}"
        table.add_row(str(one.tensor_parallel), str(one.replicas), seconds, str(one.preemptions))
    console.print(table)
    if start.tensor_parallel is None:
        line = "No tensor parallel size to start at is named: no KV cache holds the longest response"
    else:
        line = (
            f"best to start at, with lengths of {start.lengths}: "
            f"spec.rollout.tensorParallelSize: {start.tensor_parallel} (the job has {rollout_size})"
        )
    say(console, line)
