"""Switch faults: what may happen while a machine switches its tensor parallel size."""

from __future__ import annotations

import signal
import time
from contextlib import suppress

from hack.chaos.observation import Observation
from rljob_api.constants import SHM_DIR

from .in_pod import ACTOR
from .in_switch import DAMAGE_KV, DAMAGED_SECONDS, IN_SWITCH, SWITCH_SECONDS
from .pods import LARGEST_FILE, Injected, NotPossible, nothing
from .processes import ProcessFaults

TOLD_SECONDS = 1.0
"""Time in which the coordinator sees that its job is suspended."""


class SwitchFaults(ProcessFaults):
    """Faults of a job whose machines switch in each round."""

    def _switch_killed_writing(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._in_switch(seen, victims[0], "writing", signal.SIGKILL), nothing)

    def _switch_killed_loading(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._in_switch(seen, victims[0], "loading", signal.SIGKILL), nothing)

    def _switch_killed_reading(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._in_switch(seen, victims[0], "reading", signal.SIGKILL), nothing)

    def _switch_hung(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._in_switch(seen, victims[0], "loading", signal.SIGSTOP), nothing)

    def _switch_relay_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._in_switch(seen, victims[0], "loading", signal.SIGKILL, "relay"), nothing)

    def _switch_coordinator_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Stop a machine in its switch until the coordinator is killed."""
        machine = self._rollout_machine(seen)
        self._in_switch(seen, machine, "writing", signal.SIGSTOP)
        try:
            return self._coordinator_killed(victims, seen)
        finally:
            self._let_go_on(seen, machine)

    def _switch_suspended(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Stop a machine in its switch until the coordinator knows that the job is suspended."""
        machine = self._rollout_machine(seen)
        at = self._in_switch(seen, machine, "writing", signal.SIGSTOP)
        try:
            self._patch({"suspend": True})
            time.sleep(TOLD_SECONDS)
        except BaseException:
            with suppress(NotPossible):
                self._patch({"suspend": False})
            raise
        finally:
            self._let_go_on(seen, machine)
        return Injected(at, lambda: self._patch({"suspend": False}))

    def _switch_kv_damaged(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Damage what all rollout machines write. It ends by itself."""
        more, machines = (SHM_DIR, str(DAMAGED_SECONDS)), [pod.machine for pod in seen.of_role("rollout")]
        return Injected(min(self._exec(seen, one, DAMAGE_KV, one, *more) for one in machines), nothing)

    def _shared_memory_full(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Simulate full shared memory on all rollout machines, as `_disk_full` does."""
        machines = [pod.machine for pod in seen.of_role("rollout")]
        at = min(self._exec(seen, one, ACTOR, "replica", "limit", one, str(LARGEST_FILE)) for one in machines)

        def unlimited() -> None:
            for one in machines:
                self._exec(seen, one, ACTOR, "replica", "unlimit", one)

        return Injected(at, unlimited)

    # --- details ---

    def _in_switch(self, seen: Observation, machine: str, moment: str, number: int, part: str = "replica") -> float:
        more = SHM_DIR, str(SWITCH_SECONDS), str(int(number))
        return self._exec(seen, machine, IN_SWITCH, part, moment, machine, *more)

    def _let_go_on(self, seen: Observation, machine: str) -> None:
        with suppress(NotPossible):  # The job was hit meanwhile, and may have ended the process.
            self._signal(seen, machine, "replica", signal.SIGCONT)

    def _rollout_machine(self, seen: Observation) -> str:
        machines = [pod.machine for pod in seen.of_role("rollout") if pod.ready]
        if not machines:
            raise NotPossible("no rollout machine is ready")
        return machines[0]
