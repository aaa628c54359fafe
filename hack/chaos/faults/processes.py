"""Process faults: the actors of rollout machines, and the pods of trainer and coordinator."""

from __future__ import annotations

import signal
import time

from hack.chaos.observation import Observation

from .in_pod import KILL_ALL
from .pods import Injected, NotPossible, Pods, nothing


class ProcessFaults(Pods):
    """Faults of single processes and pods."""

    def _replica_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._signal(seen, victims[0], "replica", signal.SIGKILL), nothing)

    _replica_again = _replica_killed

    def _relay_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._signal(seen, victims[0], "relay", signal.SIGKILL), nothing)

    def _replica_hung(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._signal(seen, victims[0], "replica", signal.SIGSTOP), nothing)

    def _trainer_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._signal(seen, victims[0], "rank", signal.SIGKILL), nothing)

    def _coordinator_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._exec(seen, victims[0], KILL_ALL), nothing)

    def _trainer_deleted(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        pod = seen.pod_of(victims[0])
        if pod is None:
            raise NotPossible(f"{victims[0]} has no pod")
        at = time.time()
        self.kubectl("delete", "pod", pod.name, "--grace-period=0", "--force", "--wait=false")
        return Injected(at, nothing)

    _coordinator_deleted = _trainer_deleted
