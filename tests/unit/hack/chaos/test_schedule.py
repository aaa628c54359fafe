"""Which faults are made, on whom, and how they are told."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack.chaos.__main__ import last_line, parser, rows_of
from hack.chaos.faults.injector import Injector
from hack.chaos.history import check_volume
from hack.chaos.job import SHARED_MEMORY, manifest
from hack.chaos.observation import Observation
from hack.chaos.rows import AGENTS, MOVING, ROWS, SWITCHES, machines_on, spare_nodes
from hack.chaos.schedule import first_possible, schedule
from hack.chaos.table import Outcome, figures, table
from rljob_api import load
from rljob_api.constants import SHM_DIR
from tests.support.chaos import HEALTHY


@given(st.integers(0, 200), st.integers(0, 10))
def test_every_row_comes_as_often_as_any_other(count: int, seed: int) -> None:
    order = schedule(list(ROWS), count, seed)
    assert len(order) == count
    times = Counter(dict.fromkeys(ROWS, 0)) + Counter(order)
    every = [times[row] for row in ROWS]
    assert max(every) - min(every) <= 1
    assert order == schedule(list(ROWS), count, seed)
    assert all(one != other for one, other in pairwise(order))


def test_a_hundred_faults_are_five_or_more_of_every_row() -> None:
    rows = rows_of(parser().parse_args([]))
    assert min(Counter(schedule(rows, 100, 0)).values()) >= 5


@pytest.mark.parametrize(("rows", "count"), [([], 3), (["node-off"], -1)])
def test_a_schedule_of_nothing_is_refused(rows, count) -> None:
    with pytest.raises(ValueError, match="there must be a row"):
        schedule(rows, count, 0)


def test_a_row_without_a_target_waits_for_its_turn() -> None:
    on_one_node = replace(
        HEALTHY, pods=tuple(replace(pod, node="node-3") if pod.role == "rollout" else pod for pod in HEALTHY.pods)
    )
    assert first_possible(["many-nodes", "node-off"], HEALTHY) == "many-nodes"
    assert first_possible(["many-nodes", "node-off"], on_one_node) == "node-off"
    assert first_possible(["many-nodes"], on_one_node) == "many-nodes"


def test_every_row_can_be_made() -> None:
    injector = Injector("default", "somewhere")
    assert all(callable(getattr(injector, "_" + row.replace("-", "_"))) for row in ROWS)


def test_a_node_with_the_coordinator_or_the_trainer_is_spared() -> None:
    assert spare_nodes(HEALTHY) == ["node-2", "node-3", "node-4"]
    assert machines_on(HEALTHY, ("node-3", "node-1")) == ("rollout-1",)
    together = tuple(replace(pod, node="node-1") if pod.machine != "rollout-2" else pod for pod in HEALTHY.pods)
    assert spare_nodes(replace(HEALTHY, pods=together)) == ["node-4"]


def test_victims_are_of_the_row_and_none_is_made_up() -> None:
    rng = Random(1)
    apart = tuple(replace(pod, node="node-2") if pod.machine == "coordinator-0" else pod for pod in HEALTHY.pods)
    for row in ROWS.values():
        seen = replace(HEALTHY, pods=apart) if row.name in MOVING else HEALTHY
        victims = row.victims(seen, rng)
        assert victims
        if row.name in MOVING:
            assert victims == ("node-2",)
            assert row.victims(HEALTHY, rng) == (), "the trainer is there too"
        assert row.victims(Observation(0.0), rng) in ((), ("",))
        for victim in victims:
            assert victim == "" or HEALTHY.pod_of(victim) or victim in spare_nodes(HEALTHY)
    assert len(ROWS["many-nodes"].victims(HEALTHY, rng)) == 2, "more than half of three machines, and not all"
    assert ROWS["checkpoint-corrupt"].victims(replace(HEALTHY, checkpoint=0), rng) == ()


def test_the_table_has_p50_and_worst_of_each_time() -> None:
    outcomes = [
        Outcome(
            "node-off",
            "node-2",
            1.0,
            3.0,
            30.0,
            (),
            {"closed": 0.8, "created": 3.0, "joined": 23.0, "generating": 26.0},
        ),
        Outcome("node-off", "node-3", 0.5, 2.0, 50.0, (), {"closed": 1.2}),
        Outcome("node-off", "node-4", 2.0, 9.0, None, ("not well within 180 s",)),
        Outcome("operator-killed", "", None, None, 4.0),
    ]
    found = figures(outcomes, [40.0, 50.0, 52.0])
    assert found["node-off"] == {
        "count": 3,
        "wrong": 1,
        "detected": {"p50": 1.0, "worst": 2.0},
        "acted": {"p50": 3.0, "worst": 9.0},
        "back": {"p50": 30.0, "worst": 50.0},
        "moments": {
            "closed": {"p50": 0.8, "worst": 1.2},
            "suspected": None,
            "created": {"p50": 3.0, "worst": 3.0},
            "joined": {"p50": 23.0, "worst": 23.0},
            "generating": {"p50": 26.0, "worst": 26.0},
        },
        "starts": {"own": {"p50": 1.3, "worst": 1.3}, "first": {"p50": 0.52, "worst": 0.52}},
    }
    assert found["operator-killed"]["detected"] is None
    assert figures(outcomes, [])["node-off"]["starts"]["first"] is None, "the job's own start was not observed"
    rows, lost, starts = (part.splitlines() for part in table(found).split("\n\n"))
    for lines in (rows, lost, starts):
        assert len({len(line) for line in lines}) == 1
    assert " ".join(lost[1].split()) == "node-off 0.8 s 1.2 s - - 3.0 s 3.0 s 23.0 s 23.0 s 26.0 s 26.0 s"
    assert " ".join(starts[1].split()) == "node-off 1.30 1.30 0.52 0.52"
    assert len(lost) == len(starts) == 2, "the operator is no node"
    assert " ".join(rows[1].split()) == "node-off 3 1 1.0 s 2.0 s 3.0 s 9.0 s 30.0 s 50.0 s"
    assert " ".join(rows[2].split()) == "operator-killed 1 0 - - - - 4.0 s 4.0 s"
    assert json.dumps(found)


def test_the_job_is_a_good_one_that_spares_a_node() -> None:
    claim, job = manifest("OnPolicy", 3)
    spec = load(job).spec
    assert spec.rollout.machines == 3
    assert spec.checkpoint.volume_claim_name == claim["metadata"]["name"]
    places = [job["spec"][role]["template"]["spec"]["nodeSelector"] for role in ("coordinator", "trainer", "rollout")]
    assert places[0] == places[1] != places[2]


def test_the_agents_job_has_runners_that_may_lose_their_node() -> None:
    claim, code, *_, job = manifest("Asynchronous", 3, agents=True)
    (environment,) = load(job).spec.environments
    pod = job["spec"]["environments"][0]["template"]["spec"]
    assert pod["volumes"] == [{"name": "code", "configMap": {"name": code["metadata"]["name"]}}]
    assert environment.tools is not None
    assert pod["nodeSelector"] == job["spec"]["rollout"]["template"]["spec"]["nodeSelector"]
    assert claim["kind"] == "PersistentVolumeClaim"


def test_machines_of_the_switching_job_switch_at_each_look_and_move_kv() -> None:
    claim, code, job = manifest("OnPolicy", 3, switches=True)
    spec = load(job).spec
    assert spec.switch_sizes == (1, 2)
    assert spec.rollout.machines == 3
    assert spec.adaptive_tensor_parallel.state == "Migrate"
    assert sorted(code["data"]) == ["alternate.py", "failing_engines.py", "sitecustomize.py"]
    pods = {role: job["spec"][role]["template"]["spec"] for role in ("coordinator", "rollout", "trainer")}
    for role in ("coordinator", "rollout"):
        assert pods[role]["volumes"][0]["configMap"]["name"] == code["metadata"]["name"]
        (main,) = pods[role]["containers"]
        assert main["env"] == [{"name": "PYTHONPATH", "value": main["volumeMounts"][0]["mountPath"]}]
    assert not any("env" in container or "volumeMounts" in container for container in pods["trainer"]["containers"])
    (mount,) = [one for one in pods["rollout"]["containers"][0]["volumeMounts"] if one["mountPath"] == SHM_DIR]
    (memory,) = [one for one in pods["rollout"]["volumes"] if one["name"] == mount["name"]]
    assert memory["emptyDir"] == {"medium": "Memory", "sizeLimit": SHARED_MEMORY}, "it can be filled"
    assert claim["kind"] == "PersistentVolumeClaim"


def test_rows_of_agents_are_no_rows_of_other_jobs() -> None:
    assert parser().parse_args([]).rows is None
    assert rows_of(parser().parse_args([])) == [name for name in ROWS if name not in AGENTS | SWITCHES]
    assert rows_of(parser().parse_args(["--agents"])) == [name for name in ROWS if name not in SWITCHES]
    assert rows_of(parser().parse_args(["--switches"])) == [name for name in ROWS if name not in AGENTS]
    assert rows_of(parser().parse_args(["--rows", "gateway-killed"])) == ["gateway-killed"]


def test_the_last_line_tells_what_came_of_it() -> None:
    assert last_line(100, 0, "", {"lost": 0, "duplicated": 0}, 0) == (
        "chaos: Complete faults=100 unmended=0 lost=0 duplicated=0 leaked=0"
    )
    assert last_line(3, 1, "the job failed", {}, "unknown") == (
        "chaos: Failed faults=3 unmended=1 lost=unknown duplicated=unknown leaked=unknown"
    )


def test_a_volume_without_a_store_has_no_verdict(tmp_path) -> None:
    assert check_volume(tmp_path) == {"error": f"no state.db below {tmp_path}"}
    (tmp_path / "coordinator").mkdir()
    with sqlite3.connect(tmp_path / "coordinator" / "state.db") as db:
        db.execute("CREATE TABLE other (one INTEGER)")
    assert "is no state store" in check_volume(tmp_path)["error"]
