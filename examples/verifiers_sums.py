"""Sums of two digits as a taskset of the package verifiers, for verifiers-sums.yaml.

The package's own harnesses are programs that `uv` downloads at their first use. This one asks once, from the runner's
own process, so it needs no network.
"""

import httpx
import verifiers.v1 as vf

__all__ = ["Ask", "Sums"]


class SumData(vf.TaskData):
    """A task, as it stands in traces."""

    answer: int


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    """A sum, and what an answer to it is worth."""

    @vf.reward
    async def right(self, trace) -> float:
        """Return 1 for the right number."""
        return float(trace.last_reply.strip() == str(self.data.answer))

    @vf.metric
    async def characters(self, trace) -> float:
        """Return the length of the answer."""
        return len(trace.last_reply)


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    """The hundred sums. A record's field `task` is the place of its sum: 34 for 3 + 4."""

    def load(self):
        """Yield the tasks."""
        for task in range(100):
            first, second = divmod(task, 10)
            yield SumTask(SumData(prompt=f"Calculate {first} + {second}.", answer=first + second), self.config.task)


class Ask(vf.Harness[vf.HarnessConfig]):
    """Asks the model once."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        """Ask, and say how it went as a program does."""
        body = {"model": ctx.model, "messages": [{"role": "user", "content": data.prompt}]}
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(trust_env=False, headers=headers, timeout=120) as http:
            response = await http.post(f"{endpoint}/chat/completions", json=body)
        return vf.ProgramResult(int(response.status_code != 200), "", response.text)
