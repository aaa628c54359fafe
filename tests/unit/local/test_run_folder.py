"""A folder of local runs: one at a time, all of one job."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api import RLJob, load
from rljob_api.status import RoundKind
from rljob_runtime.coordinator.store.connection import StoreUnusable
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.local.run import local_places
from rljob_runtime.local.run_folder import FolderRefused, changes, hold, relay_key
from rljob_runtime.protocols.trajectory import Cursor, PromptKey
from rljob_runtime.relay.relay import MIN_KEY_BYTES, read_key
from rljob_runtime.scheduling.round_plan import RoundPlan, RoundShape
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "minimal.yaml"
CURE = "set it back, or give --workdir another folder"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "1 + 1 = ", "answer": "2"}\n')
    return path


@pytest.fixture
def job(data: Path) -> Callable[..., RLJob]:
    manifest: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))

    def made(name: str = "a", prompts: Path = data, **spec: Any) -> RLJob:
        rewards = [{"name": "sum", "kind": "Python", "function": "rljob_runtime.rewards.builtin:last_number"}]
        changed = {**manifest["spec"], "rewards": rewards, **spec}
        changed["data"] = {**changed["data"], "prompts": {"file": {"path": str(prompts)}}, **spec.get("data", {})}
        return load({**manifest, "metadata": {"name": name}, "spec": changed})

    return made


def draw(folder: Path, uid: str) -> None:
    """As a run that has begun a round and stopped."""
    store = Store(folder / "state.db", uid)
    prompt = PromptKey(0, 0)
    store.versions.publish(1, 0)
    store.rounds.open(RoundPlan(1, 1, RoundShape(RoundKind.LONG, 1, 1, 1, 1), (prompt,)), Cursor(0, 1))
    store.close()


def played(folder: Path, job: RLJob) -> None:
    with hold(folder, job) as held:
        draw(folder, held.uid)


def refusal(folder: Path, job: RLJob) -> str:
    with pytest.raises(FolderRefused) as refused, hold(folder, job):
        pass
    return str(refused.value)


def test_a_second_run_goes_on_with_the_same_identity(tmp_path, job):
    folder = tmp_path / "run"
    with hold(folder, job()) as first:
        draw(folder, first.uid)
    with hold(folder, job(rounds=9)) as second:
        assert second == first


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "b"}, ["metadata.name: 'b' cannot change in this folder; it was 'a'"]),
        ({"data": {"seed": 7}}, ["spec.data.seed: 7 cannot change in this folder; it was 0"]),
        ({"mode": "Asynchronous"}, ["spec.mode: 'Asynchronous' cannot change in this folder; it was 'OnPolicy'"]),
        (
            {"model": {"source": "package://rljob/toy", "dtype": "bfloat16"}},
            ["spec.model.dtype: 'bfloat16' cannot change in this folder; it was 'float32'"],
        ),
    ],
)
def test_an_edit_of_a_fixed_field_is_refused_with_both_values(tmp_path, job, changed, said):
    folder = tmp_path / "run"
    base = {"model": {"source": "package://rljob/toy", "dtype": "float32"}, "data": {"seed": 0}}
    played(folder, job(**base))
    assert refusal(folder, job(**{**base, **changed})).splitlines() == [f"{folder}: {line}; {CURE}" for line in said]


def test_another_prompt_file_or_other_bytes_are_refused(tmp_path, job, data):
    folder, other = tmp_path / "run", tmp_path / f"{'long' * 30}.jsonl"
    other.write_bytes(data.read_bytes())
    played(folder, job())
    assert refusal(folder, job(prompts=other)) == (
        f"{folder}: spec.data.prompts.file.path: {str(other)!r} cannot change in this folder; "
        f"it was {str(data)!r}; {CURE}"
    )
    data.write_text('{"prompt": "1 + 2 = ", "answer": "3"}\n')
    assert "spec.data.prompts.file.path: the content has changed (sha256 is " in refusal(folder, job())


def test_a_data_set_is_all_of_its_files(tmp_path, job):
    folder, dataset = tmp_path / "run", tmp_path / "set"
    (dataset / "part").mkdir(parents=True)
    (dataset / "part" / "0.arrow").write_text("a")
    prompts = {"prompts": {"dataset": {"path": str(dataset)}}}
    played(folder, job(data=prompts))
    with hold(folder, job(data=prompts)):
        pass
    (dataset / "part" / "1.arrow").write_text("b")
    assert "spec.data.prompts.dataset.path: the content has changed" in refusal(folder, job(data=prompts))


def test_before_a_prompt_was_drawn_everything_may_change(tmp_path, job, data):
    """A run that found a mistake in its data has left nothing that would forbid to correct it."""
    folder = tmp_path / "run"
    with hold(folder, job()) as held:
        Store(folder / "state.db", held.uid).close()
    data.write_text('{"prompt": "1 + 2 = ", "answer": "3"}\n')
    played(folder, job(name="b"))
    assert refusal(folder, job()).startswith(f"{folder}: metadata.name: 'a' cannot change in this folder; it was 'b'")


def test_a_record_that_cannot_be_read_is_told_with_what_to_do(tmp_path, job):
    folder = tmp_path / "run"
    played(folder, job())
    (folder / "run.json").write_text('{"job": ')
    assert refusal(folder, job()).startswith(f"{folder}/run.json: cannot be read: ")
    (folder / "run.json").unlink()
    with hold(folder, job()):
        assert json.loads((folder / "run.json").read_text())["sha256"]


def test_a_damaged_store_is_told_as_one(tmp_path, job):
    folder = tmp_path / "run"
    played(folder, job())
    (folder / "state.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StoreUnusable, match="file is not a database"), hold(folder, job()):
        pass


def test_a_store_whose_folder_has_lost_its_identity_is_refused(tmp_path, job):
    folder = tmp_path / "run"
    played(folder, job())
    (folder / "uid").write_text("")
    assert refusal(folder, job()).startswith(f"{folder}/uid: is empty or missing")


HOLDER = """
import sys, time
from pathlib import Path
from rljob_api import load
from rljob_runtime.local.run_folder import hold
with hold(Path(sys.argv[1]), load(Path(sys.argv[2]).read_text())):
    print("held", flush=True)
    time.sleep(600)
"""


def test_one_run_at_a_time_and_the_next_one_where_it_was_killed(tmp_path, job):
    folder, manifest = tmp_path / "run", tmp_path / "job.yaml"
    one = job()
    manifest.write_text(
        yaml.safe_dump(
            {"apiVersion": one.api_version, "kind": one.kind, "metadata": {"name": "a"}, "spec": one.spec.to_dict()}
        )
    )
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), str(manifest)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        told = refusal(folder, one)
        assert told.startswith(f"{folder}: another run (process {first.pid}) works in this folder; ")
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    finally:
        first.kill()
        first.communicate()
    with hold(folder, one):
        pass


@pytest.mark.parametrize("kind", ["a file", "below a file", "not to be written"])
def test_a_folder_that_cannot_be_used_is_one_line(tmp_path, job, kind):
    (tmp_path / "file").write_text("")
    place = {
        "a file": tmp_path / "file",
        "below a file": tmp_path / "file" / "below",
        "not to be written": Path("/proc/none"),
    }
    told = refusal(place[kind], job())
    assert "cannot be used: " in told
    assert told.endswith("; give --workdir a folder that can be written to")
    assert "\n" not in told


@pytest.mark.parametrize("left", [None, b"", b"short"])
def test_a_relay_key_that_is_too_short_is_replaced(tmp_path, left):
    path = tmp_path / "auth" / "relay-key"
    if left is not None:
        path.parent.mkdir()
        path.write_bytes(left)
    assert relay_key(tmp_path) == path
    key = read_key(path)
    assert len(key) >= MIN_KEY_BYTES
    assert path.stat().st_mode & 0o077 == 0
    relay_key(tmp_path)
    assert read_key(path) == key


def test_what_a_killed_run_left_in_shared_memory_goes_and_nothing_else(tmp_path):
    shared, other = tmp_path / "rljob-a", tmp_path / "rljob-b"
    for folder in (shared, other):
        (folder / "rollout-0").mkdir(parents=True)
        (folder / "rollout-0" / "slot-0").write_bytes(b"weights")
    with local_places(tmp_path / "run", shared) as placement:
        assert list(placement.shared_memory.iterdir()) == []
    assert not shared.exists()
    assert (other / "rollout-0" / "slot-0").exists()


def test_a_store_that_was_drawn_from_is_seen_in_any_format(tmp_path):
    from rljob_runtime.coordinator.store.connection import has_history

    path = tmp_path / "state.db"
    assert not has_history(path)
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE rounds (step INTEGER)")
    assert not has_history(path)
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO rounds VALUES (1)")
    assert has_history(path)
    assert os.listdir(tmp_path) == ["state.db"]


def test_what_may_change_is_returned_and_becomes_the_recorded_spec(tmp_path, job):
    folder = tmp_path / "run"
    played(folder, job(rounds=8))
    with hold(folder, job(rounds=9)) as held:
        assert held.changes == (("spec.rounds", 8, 9),)
    assert json.loads((folder / "run.json").read_text())["job"]["spec"]["rounds"] == 9
    with hold(folder, job(rounds=9)) as held:
        assert held.changes == ()


def test_an_edit_that_an_api_server_refuses_is_refused(tmp_path, job):
    folder = tmp_path / "run"
    played(folder, job())
    assert refusal(folder, job(checkpoint={"volumeClaimName": "other"})).startswith(
        f"{folder}: spec.checkpoint.volumeClaimName: "
    )


@pytest.mark.parametrize("field", ["reward", "tools"])
def test_what_makes_an_environment_another_one_is_refused(tmp_path, job, field):
    """It is no field of a short list: all that never change on a cluster never change in a folder."""
    one = {"name": "calc", "kind": "Tools", "tools": [{"function": "calc.py:add"}], "reward": "calc.py:score"}
    other = {**one, "reward": "calc.py:other", "tools": [{"function": "calc.py:other"}]}
    folder = tmp_path / "run"
    played(folder, job(environments=[one]))
    assert refusal(folder, job(environments=[{**one, field: other[field]}])).startswith(
        f"{folder}: spec.environments[0].{field}"
    )


def test_what_a_run_would_change_is_told_and_nothing_is_recorded(tmp_path, job):
    folder = tmp_path / "run"
    played(folder, job(rounds=8))
    before = (folder / "run.json").read_bytes()
    assert changes(folder, job(rounds=8)) == ()
    assert changes(folder, job(rounds=9)) == (("spec.rounds", 8, 9),)
    with pytest.raises(FolderRefused, match=r"spec\.data\.seed: 7 cannot change in this folder"):
        changes(folder, job(data={"seed": 7}))
    assert (folder / "run.json").read_bytes() == before
    with hold(folder, job(rounds=8)), pytest.raises(FolderRefused, match="another run"):
        changes(folder, job(rounds=8))
