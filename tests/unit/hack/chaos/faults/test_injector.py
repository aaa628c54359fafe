"""Whom a fault hits is found inside the pod, by what its processes are and hold."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.chaos.faults.in_pod import ACTOR
from hack.chaos.faults.in_shared_memory import REFUSE, REMOVE
from hack.chaos.faults.in_switch import DAMAGE_KV, IN_SWITCH
from hack.chaos.faults.injector import CONTROLLERS, Injector
from hack.chaos.faults.pods import LARGEST_FILE, Injected, NotPossible
from hack.chaos.faults.switches import NO_ROOM
from hack.chaos.in_pods.failing_engines import REFUSED
from rljob_runtime.rollout.kv.kv_file import Held, KvFileWriter, KvRegions, Origin, digest, plan, read_index
from rljob_runtime.rollout.kv.layout import KvShape
from tests.support.chaos import HEALTHY

MAPS = """
import mmap, sys
if len(sys.argv) > 1:
    file = open(sys.argv[1], "r+b")
    held = mmap.mmap(file.fileno(), 4096)
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def machine() -> Iterator[str]:
    """A machine of its own, so that no other processes are hit; its shared memory as the nodes give it."""
    name = f"rollout-{uuid.uuid4().hex}"
    folder = Path("/dev/shm") / f"rljob-{uuid.uuid4()}"
    (folder / name).mkdir(parents=True)
    (folder / name / "slot-0").write_bytes(bytes(4096))
    yield str(folder / name)
    shutil.rmtree(folder)


def host(*held: str, code: str = MAPS) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        ["ray::ActorHost", "-c", code, *held],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    return process


def test_a_relay_is_the_actor_that_writes_the_machines_weights(machine: str) -> None:
    relay, other = host(f"{machine}/slot-0"), host()
    try:
        inside = (sys.executable, "-c", ACTOR, "relay", "0", Path(machine).name)
        found = json.loads(subprocess.run(inside, capture_output=True, text=True, check=True).stdout)
        assert found["pids"] == [relay.pid]
    finally:
        for process in (relay, other):
            process.kill()
            process.communicate()


READS = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
held = mmap.mmap(file, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
print("there", flush=True)
sys.stdin.read()
"""


class Waiting:
    """The script that waits for a moment of a machine's next switch. It sends no signal but 0."""

    def __init__(self, machine: str, shared: Path, moment: str, seconds: float = 600.0) -> None:
        inside = (sys.executable, "-c", IN_SWITCH, "replica", moment, machine, str(shared), str(seconds), "0")
        self._process = subprocess.Popen(inside, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "waits for a switch\n"

    def still(self, seconds: float = 0.5) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is None

    def pids(self) -> list[int]:
        found: list[int] = json.loads(self._process.communicate(timeout=200)[0].splitlines()[-1])["pids"]
        return found


@pytest.fixture
def written(tmp_path: Path) -> Iterator[KvFileWriter]:
    """The file that an engine of `rollout-1` writes, which is not complete yet."""
    shape = KvShape("made up", "uint8", layers=1, kv_heads=1, block_size=16, token_bytes=512)
    index = plan(Origin("a/job", "rollout-1.1", 3), shape, {"one": Held(16, digest(range(16)))})
    (tmp_path / "rljob-a" / "rollout-1-kv").mkdir(parents=True)
    (tmp_path / "rljob-a" / "rollout-1-kv" / "old.kv").write_bytes(b"RLJKV001")
    replica = host()
    waits = [Waiting("rollout-1", tmp_path, moment) for moment in ("writing", "loading", "reading")]
    assert all(one.still() for one in waits), "a file that was there before is no switch"
    writer = KvFileWriter.create(tmp_path / "rljob-a" / "rollout-1-kv", index)
    writer.waits = waits  # type: ignore[attr-defined]
    yield writer
    writer.close()
    replica.kill()
    replica.communicate()


def test_a_fault_in_a_switch_waits_for_its_moment(written: KvFileWriter) -> None:
    """The machine's KV file begins, is complete, and is mapped by an engine that reads it."""
    reader = None
    writing, loading, reading = written.waits  # type: ignore[attr-defined]
    try:
        assert writing.pids() != []
        assert loading.still()
        written.seal({"one": [0]})
        assert loading.pids() != []
        assert reading.still()
        reader = host(str(written.path), code=READS)
        assert reading.pids() == [reader.pid]
    finally:
        if reader is not None:
            reader.kill()
            reader.communicate()


def test_a_fault_without_a_switch_hits_nothing(tmp_path: Path) -> None:
    waiting = Waiting("rollout-1", tmp_path, "writing", seconds=0.2)
    (tmp_path / "rljob-a" / "rollout-2-kv").mkdir(parents=True)
    (tmp_path / "rljob-a" / "rollout-2-kv" / "other.kv").touch()
    assert waiting.pids() == []


def test_damaged_kv_is_noticed_and_nothing_else_of_its_file_changes(written: KvFileWriter) -> None:
    """The file of a switch is damaged when it is complete. Its index says what was written."""
    shared = written.path.parents[2]
    used = KvFileWriter.create(written.path.parent, written.index)
    used.seal({"one": [KvRegions(used.path, used.index).checksums("one", range(1))[0]]})
    inside = (sys.executable, "-c", DAMAGE_KV, "rollout-1", str(shared), "30")
    done = subprocess.run(inside, capture_output=True, text=True, check=True, timeout=60)
    assert len(json.loads(done.stdout)["pids"]) == 1
    right = KvRegions(written.path, written.index).checksums("one", range(1))[0]
    written.seal({"one": [right]})
    end, held = time.monotonic() + 20, KvRegions(written.path, written.index, writable=True)
    while held.is_intact("one", range(1)):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert read_index(written.path) == written.index
    assert KvRegions(used.path, used.index).is_intact("one", range(1)), "it may be in use"
    used.close()


def machines(count: int) -> str:
    return json.dumps({"spec": {"rollout": {"machines": count}}})


@pytest.mark.parametrize(
    ("row", "story"),
    [
        ("switch-coordinator-killed", ["SIGSTOP", "killed", "SIGCONT"]),
        ("switch-trainer-killed", ["SIGSTOP", "killed", "SIGCONT"]),
        ("switch-suspended", ["SIGSTOP", '{"spec": {"suspend": true}}', "SIGCONT", '{"spec": {"suspend": false}}']),
        ("switch-scaled", ["SIGSTOP", machines(2), "SIGCONT", machines(3)]),
    ],
)
def test_a_machine_stands_still_in_its_switch_until_the_job_was_hit(
    monkeypatch: pytest.MonkeyPatch, row: str, story: list[str]
) -> None:
    told: list[str] = []
    injector = Injector("no-job", "nowhere")

    def in_switch(seen: object, machine: str, moment: str, number: int) -> float:
        assert (machine, moment) == ("rollout-0", "writing")
        told.append(signal.Signals(number).name)
        return 7.0

    def sends(seen: object, machine: str, part: str, number: int) -> float:
        assert (machine, part) == ("rollout-0", "replica")
        told.append(signal.Signals(number).name)
        return 8.0

    def kills(*asked: object) -> Injected:
        told.append("killed")
        return Injected(9.0, lambda: None)

    def ended(*asked: object) -> float:
        raise NotPossible("its processes have ended")

    monkeypatch.setattr(injector, "_in_switch", in_switch)
    monkeypatch.setattr(injector, "_signal", sends)
    monkeypatch.setattr(injector, "_coordinator_killed", kills)
    monkeypatch.setattr(injector, "_trainer_killed", kills)
    monkeypatch.setattr(injector, "kubectl", lambda *args: told.append(args[-1]))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    injected = injector.inject(row, ("rollout-0",), HEALTHY)
    injected.undo()
    assert told == story
    # What was hit is undone, also where the machine could not go on.
    monkeypatch.setattr(injector, "_signal", ended)
    injector.inject(row, ("rollout-0",), HEALTHY).undo()
    assert told == [*story, *(one for one in story if one != "SIGCONT")]


def test_a_machine_that_refused_a_size_gets_new_processes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    injector = Injector("no-job", "nowhere")

    def runs(seen: object, machine: str, script: str, *arguments: str) -> float:
        assert machine == "rollout-1"
        told.append((script, *arguments))
        return 7.0

    monkeypatch.setattr(injector, "_exec", runs)
    injected = injector.inject("switch-refused", ("rollout-1",), HEALTHY)
    assert told == [(REFUSE, "/dev/shm", "2")]
    injected.undo()
    injected.undo()
    killed = (ACTOR, "replica", str(int(signal.SIGKILL)), "rollout-1")
    assert told[1:] == [(REMOVE, "/dev/shm", REFUSED), killed]


REFUSAL = f"rollout-0/replica-0: KV is computed again: /dev/shm/x: the KV of 9 responses needs 9,999 {NO_ROOM} 0 more"


@pytest.mark.parametrize(("log", "count"), [(f"one\n{REFUSAL}\ntwo\n", 0), ("one\ntwo\n", 1)], ids=["told", "not told"])
def test_a_refusal_with_its_numbers_must_be_in_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], log: str, count: int
) -> None:
    injector, asked = Injector("no-job", "nowhere"), list[tuple[str, ...]]()
    monkeypatch.setattr(injector, "_exec", lambda *given: 1_000_000.0)

    def kubectl(*given: str) -> str:
        asked.append(given)
        return log

    monkeypatch.setattr(injector, "kubectl", kubectl)
    injected = injector.inject("switch-no-room", ("",), HEALTHY)
    assert len(injected.unproved()) == count
    assert "--since-time=1970-01-12T13:46:40Z" in asked[0]
    assert (REFUSAL in capsys.readouterr().out) is (count == 0)


def test_a_machine_without_room_frees_those_that_were_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    injector, freed = Injector("no-job", "nowhere"), list[str]()

    def runs(seen: object, machine: str, script: str, *arguments: str) -> float:
        if script == REMOVE:
            freed.append(machine)
        elif machine == "rollout-1":
            raise NotPossible("it is full")
        return 7.0

    monkeypatch.setattr(injector, "_exec", runs)
    with pytest.raises(NotPossible, match="it is full"):
        injector.inject("switch-no-room", ("",), HEALTHY)
    assert freed == ["rollout-0", "rollout-1", "rollout-2"]


FULL = """
import resource, sys
from pathlib import Path
from rljob_runtime.rollout.kv.kv_file import Held, KvFileWriter, NoRoom, Origin, digest, plan
from rljob_runtime.rollout.kv.layout import KvShape
shape = KvShape("made up", "uint8", layers=1, kv_heads=1, block_size=16, token_bytes=512)
index = plan(Origin("a/job", "rollout-1.1", 3), shape, {"one": Held(320, digest(range(320)))})
for most in sys.argv[2:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(most), resource.RLIM_INFINITY))
    try:
        KvFileWriter.create(Path(sys.argv[1]), index).close()
    except NoRoom:
        print("no room")
    else:
        print("written")
"""


def test_a_limit_of_files_is_a_full_shared_memory_for_kv(machine: str) -> None:
    inside = (sys.executable, "-c", FULL, f"{machine}-kv", str(LARGEST_FILE), str(1 << 30))
    done = subprocess.run(inside, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["no room", "written"]
    assert list(Path(f"{machine}-kv").glob("*.kv")) == []


def test_a_pause_of_the_api_server_evicts_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controllers stand still with it, and until each kubelet has renewed its node's Lease."""
    story: list[str] = []

    class Component:
        def __init__(self, name: str) -> None:
            self._name = name

        def signal(self, number: int) -> None:
            story.append(f"{signal.Signals(number).name} {self._name}")

    times = iter(["", "2026-01-01T00:00:00.0Z 2999-01-01T00:00:00.0Z", "2999-01-01T00:00:00.0Z 2999-01-01T00:00:00.0Z"])

    def kubectl(*args: str, check: bool = True) -> str:
        story.append("look")
        return next(times)

    injector = Injector("no-job", "nowhere")
    monkeypatch.setattr(injector, "_component", Component)
    monkeypatch.setattr(injector, "kubectl", kubectl)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    injected = injector._api_paused((), None)  # type: ignore[arg-type]
    injected.undo()
    injected.undo()
    first = [f"SIGSTOP {CONTROLLERS}", "SIGSTOP kube-apiserver", "SIGCONT kube-apiserver", *["look"] * 3]
    assert story == [*first, f"SIGCONT {CONTROLLERS}", "SIGCONT kube-apiserver", f"SIGCONT {CONTROLLERS}"]
