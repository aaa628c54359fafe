"""Switch faults: what may happen while a machine switches its tensor parallel size."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from hack.chaos.in_pods.failing_engines import ASLEEP, REFUSED, STOPPING
from hack.chaos.job import JOB
from hack.chaos.observation import JOB as LABEL_JOB
from hack.chaos.observation import ROLE as LABEL_ROLE
from hack.chaos.observation import Observation
from rljob_api.constants import SHM_DIR

from .in_pod import ACTOR
from .in_shared_memory import DIES_IN, FILL, FILLED, LEFT, REFUSE, REMOVE
from .in_switch import DAMAGE_KV, DAMAGED_SECONDS, IN_SWITCH, SWITCH_SECONDS
from .pods import LARGEST_FILE, Injected, NotPossible, nothing
from .processes import ProcessFaults

TOLD_SECONDS = 1.0
"""Time in which the coordinator sees that its job is suspended, or smaller."""
WIDE = 2
"""The size of one engine for a whole machine."""
FILLED_SECONDS = 60.0
"""Time after which shared memory is free again, also without a campaign that frees it."""
NO_ROOM = "bytes of shared memory, the weights need"
"""Part of the message of an export that was refused for its size: it has all three numbers."""


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

    def _switch_killed_stopping(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._dies_in(seen, victims[0], STOPPING), nothing)

    def _switch_killed_asleep(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return Injected(self._dies_in(seen, victims[0], ASLEEP), nothing)

    def _switch_refused(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Let no engine of the wide size start on a machine. It asks again for that size with new processes only."""
        (machine,) = victims
        at = self._exec(seen, machine, REFUSE, SHM_DIR, str(WIDE))
        undone: list[float] = []

        def start() -> None:
            if not undone:
                self._exec(seen, machine, REMOVE, SHM_DIR, REFUSED)
                undone.append(self._signal(seen, machine, "replica", signal.SIGKILL))

        return Injected(at, start)

    def _switch_coordinator_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        with self._stopped_in_switch(seen, self._rollout_machine(seen)):
            return self._coordinator_killed(victims, seen)

    def _switch_trainer_killed(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        with self._stopped_in_switch(seen, self._rollout_machine(seen)):
            return self._trainer_killed(victims, seen)

    def _switch_suspended(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        return self._edited(self._rollout_machine(seen), seen, {"suspend": True}, {"suspend": False})

    def _switch_scaled(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Have the machine leave: a job that shrinks loses the machine with the highest number."""
        fewer, all_ = ({"rollout": {"machines": count}} for count in (seen.desired - 1, seen.desired))
        return self._edited(victims[0], seen, fewer, all_)

    def _switch_kv_damaged(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Damage what all rollout machines write. It ends by itself."""
        more, machines = (SHM_DIR, str(DAMAGED_SECONDS)), [pod.machine for pod in seen.of_role("rollout")]
        return Injected(min(self._exec(seen, one, DAMAGE_KV, one, *more) for one in machines), nothing)

    def _switch_no_room(self, victims: tuple[str, ...], seen: Observation) -> Injected:
        """Fill the shared memory of all rollout machines but for what their relays need."""
        machines = [pod.machine for pod in seen.of_role("rollout")]
        more = (str(LEFT), str(FILLED_SECONDS))

        def free() -> None:
            for one in machines:
                self._exec(seen, one, REMOVE, SHM_DIR, FILLED)

        try:
            at = min(self._exec(seen, one, FILL, SHM_DIR, one, *more) for one in machines)
        except NotPossible:
            free()
            raise
        return Injected(at, free, lambda: self._no_refusal(at))

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

    def _dies_in(self, seen: Observation, machine: str, step: str) -> float:
        return self._exec(seen, machine, DIES_IN, SHM_DIR, step, str(SWITCH_SECONDS))

    @contextmanager
    def _stopped_in_switch(self, seen: Observation, machine: str) -> Iterator[float]:
        """Let a machine stand still in its next switch for the block."""
        at = self._in_switch(seen, machine, "writing", signal.SIGSTOP)
        try:
            yield at
        finally:
            self._let_go_on(seen, machine)

    def _edited(self, machine: str, seen: Observation, spec: dict[str, Any], before: dict[str, Any]) -> Injected:
        """Change the spec while a machine switches, which stands still until the coordinator knows of the change."""
        with self._stopped_in_switch(seen, machine) as at:
            try:
                self._patch(spec)
                time.sleep(TOLD_SECONDS)
            except BaseException:
                with suppress(NotPossible):
                    self._patch(before)
                raise
        return Injected(at, lambda: self._patch(before))

    def _no_refusal(self, since: float) -> list[str]:
        """Print the newest refusal in the coordinator's log; return what is wrong if it has none."""
        start = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        chosen = ("-l", f"{LABEL_JOB}={JOB},{LABEL_ROLE}=coordinator", "-c", "main")
        log = self.kubectl("logs", *chosen, "--tail=-1", f"--since-time={start}")
        told = [line for line in log.splitlines() if NO_ROOM in line]
        if not told:
            return [f"no refusal of KV is in the coordinator's log: a line with {NO_ROOM!r} would be right"]
        print(f"chaos: {told[-1]}", flush=True)
        return []

    def _let_go_on(self, seen: Observation, machine: str) -> None:
        with suppress(NotPossible):  # The job was hit meanwhile, and may have ended the process.
            self._signal(seen, machine, "replica", signal.SIGCONT)

    def _rollout_machine(self, seen: Observation) -> str:
        machines = [pod.machine for pod in seen.of_role("rollout") if pod.ready]
        if not machines:
            raise NotPossible("no rollout machine is ready")
        return machines[0]
