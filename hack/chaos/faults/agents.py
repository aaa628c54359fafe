"""Agents' faults: the gateway, the runners and the tool server of a job with environments."""

from __future__ import annotations

import time

from hack.chaos.observation import Observation
from hack.chaos.tool_server import COMMAND, LABELS
from rljob_api.constants import GATEWAY_PORT, LABEL_ENVIRONMENTS_OF

from . import pod_network
from .in_pod import RUNNING
from .pods import Injected, NotPossible, Pods, nothing

KILL = f"""{RUNNING}
found = running("\\0".join(sys.argv[1:]) + "\\0")
for pid in found:
    os.kill(pid, 9)
print(json.dumps({{"at": time.time(), "pids": found}}))
"""
"""Kills the processes of a pod whose command line has these words, from any container of it."""

HANG = f"""{RUNNING}
found = running("\\0".join(sys.argv[2:]) + "\\0")
for pid in found:
    os.kill(pid, signal.SIGSTOP)
print(json.dumps({{"at": time.time(), "pids": found}}), flush=True)
if found and continues_alone():
    time.sleep(float(sys.argv[1]))
    for pid in found:
        os.kill(pid, signal.SIGCONT)
"""
"""Stops such processes, and lets them go on after some seconds."""

GATEWAY = ("rljob_runtime.entrypoints", "gateway", "--config")
RUNNER = ("-m", "rljob_env")
HUNG_SECONDS = 40.0
"""Longer than a runner may be silent: another one has its episodes when it goes on with them. Longer than a call of a
tool with the question whether its server is there."""
GATEWAY_SECONDS = 10.0
"""Of a gateway that hangs: less than its clients wait for an answer."""


class AgentFaults(Pods):
    """Faults of the parts that episodes need."""

    def _gateway_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._exec(seen, victims[0], KILL, *GATEWAY), nothing)

    def _gateway_hung(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Stop the gateway. It goes on by itself, before the row's fault is over."""
        return Injected(self._exec(seen, victims[0], HANG, str(GATEWAY_SECONDS), *GATEWAY), nothing)

    def _runner_deleted(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        runner, at = self._runners()[0], time.time()
        self.kubectl("delete", runner, "--grace-period=0", "--force", "--wait=false")
        return Injected(at, nothing)

    def _runner_hung(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Stop a runner. It goes on by itself, during later faults: the campaign does not wait for it."""
        return Injected(self._exec_in(self._runners()[-1], HANG, str(HUNG_SECONDS), *RUNNER), nothing)

    def _runner_cut(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Drop all packets between a runner and the gateway."""
        runner = self._runners()[0]
        uid = self.kubectl("get", runner, "-o", "jsonpath={.metadata.uid}").strip()
        pid = pod_network.process_of(uid)
        if pid is None:
            raise NotPossible(f"{runner} has no process on this machine")
        at, joined = time.time(), list[float]()
        if why := pod_network.cut(pid, GATEWAY_PORT):
            pod_network.join(pid, GATEWAY_PORT)
            raise NotPossible(f"{runner} is not cut off: {why}")

        def join() -> None:
            if not joined:
                joined.append(time.time())
                if why := pod_network.join(pid, GATEWAY_PORT):
                    raise NotPossible(f"{runner} is still cut off: {why}")

        return Injected(at, join)

    def _tool_server_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Kill the tool server, with the sessions of all open episodes. Its container starts it again."""
        return Injected(self._exec_in(self._tool_server(), KILL, *COMMAND), nothing)

    def _tool_server_hung(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Stop the tool server. It goes on by itself, before the row's fault is over."""
        return Injected(self._exec_in(self._tool_server(), HANG, str(HUNG_SECONDS), *COMMAND), nothing)

    def _runners(self) -> list[str]:
        return self._running(LABEL_ENVIRONMENTS_OF, "the job has no runner")

    def _tool_server(self) -> str:
        (label,) = LABELS.items()
        return self._running("=".join(label), "the job has no tool server")[0]

    def _running(self, labels: str, none: str) -> list[str]:
        """Return the running pods with these labels. Raises `NotPossible`."""
        chosen = ("-l", labels, "--field-selector=status.phase=Running")
        if not (found := self.kubectl("get", "pods", *chosen, "-o", "name").split()):
            raise NotPossible(none)
        return found
