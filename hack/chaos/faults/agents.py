"""Agents' faults: the gateway and the runners of a job with environments."""

from __future__ import annotations

import time

from hack.chaos.observation import Observation
from rljob_api.constants import LABEL_ENVIRONMENTS_OF

from .in_pod import RUNNING
from .pods import Injected, NotPossible, Pods, nothing

KILL_GATEWAY = f"""{RUNNING}
found = running("rljob_runtime.entrypoints\\0gateway\\0--config")
for pid in found:
    os.kill(pid, 9)
print(json.dumps({{"at": time.time(), "pids": found}}))
"""
"""Kills the gateway of agents, from another container of its pod."""

HANG_RUNNER = f"""{RUNNING}
found = running("-m\\0" + sys.argv[2] + "\\0")
for pid in found:
    os.kill(pid, signal.SIGSTOP)
print(json.dumps({{"at": time.time(), "pids": found}}), flush=True)
if found and continues_alone():
    time.sleep(float(sys.argv[1]))
    for pid in found:
        os.kill(pid, signal.SIGCONT)
"""
"""Stops a runner, which runs that module, from within its pod, and lets it go on after some seconds."""

RUNNER = "rljob_env"
HUNG_SECONDS = 40.0
"""Longer than a runner may be silent: another one has its episodes when it goes on with them."""


class AgentFaults(Pods):
    """Faults of the parts that episodes need."""

    def _gateway_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._exec(seen, victims[0], KILL_GATEWAY), nothing)

    def _runner_deleted(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        runner, at = self._runners()[0], time.time()
        self.kubectl("delete", runner, "--grace-period=0", "--force", "--wait=false")
        return Injected(at, nothing)

    def _runner_hung(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Stop a runner. It goes on by itself, during later faults: the campaign does not wait for it."""
        return Injected(self._exec_in(self._runners()[-1], HANG_RUNNER, str(HUNG_SECONDS), RUNNER), nothing)

    def _runners(self) -> list[str]:
        chosen = ("-l", LABEL_ENVIRONMENTS_OF, "--field-selector=status.phase=Running")
        runners = self.kubectl("get", "pods", *chosen, "-o", "name").split()
        if not runners:
            raise NotPossible("the job has no runner")
        return runners
