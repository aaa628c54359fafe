"""Quota of environments: a pod set for the runners of each, in the base and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_api.spec import RLJob
from rljob_api.status import Role
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.kueue_objects import ASKS, SELECTS, Kueue
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.kueue import admission, settlement, workloads
from tests.support.operator.harness import make_job

Json = dict[str, Any]

CONFIG = Config()
QUEUE = Kueue("lq")
BASE, MACHINE = tuple(Role), (Role.ROLLOUT,)
RESOURCES = {"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}}


def shell(name: str = "shell", runners: int = 3, **template: Any) -> Json:
    """An environment whose template has this spec."""
    environment = {"name": name, "kind": "Agent", "command": ["agent"], "runners": runners}
    return {**environment, "template": {"spec": template}}


def main(**fields: Any) -> Json:
    return {"containers": [{"name": "main", **fields}]}


def with_environments(*environments: Json) -> RLJob:
    return make_job(environments=list(environments))


def test_the_base_has_a_pod_set_for_the_runners_of_each_environment() -> None:
    spec = {**main(image="own:1", resources=RESOURCES), "nodeSelector": {"a": "b"}}
    job = with_environments(shell(), shell("search", 1, **spec))
    base = workloads.base(job, QUEUE, CONFIG)
    sets = {one["name"]: one for one in base["spec"]["podSets"]}
    counts = {name: one["count"] for name, one in sets.items()}
    assert counts == {"coordinator": 1, "trainer": 1, "rollout": 2, "environment-shell": 3, "environment-search": 1}
    pods = sets["environment-search"]["template"]["spec"]
    assert pods["nodeSelector"] == {"a": "b"}
    assert pods["restartPolicy"] == "Always"
    charged = {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    assert pods["containers"] == [{"name": "main", "resources": charged}], "limits are requests where there are none"


def test_a_machine_of_its_own_workload_asks_for_no_runners() -> None:
    (surplus,) = workloads.surplus(with_environments(shell()), QUEUE, [2], 0, CONFIG)
    assert [one["name"] for one in surplus["spec"]["podSets"]] == ["rollout"]
    (without,) = workloads.surplus(make_job(), QUEUE, [2], 0, CONFIG)
    for key in (ASKS, SELECTS):
        assert surplus["metadata"]["annotations"][key] == without["metadata"]["annotations"][key]


@pytest.mark.parametrize(
    ("environment", "asks", "selects"),
    [
        (shell(**main(image="another:1")), False, False),
        (shell(**main(resources=RESOURCES)), True, False),
        (shell(runners=4), True, False),
        (shell(nodeSelector={"a": "b"}), False, True),
        (shell(runtimeClassName="gvisor"), True, False),
    ],
)
def test_what_is_requested_again(environment: Json, asks: bool, selects: bool) -> None:
    before, after = with_environments(shell()), with_environments(environment)
    for changed, digest in ((asks, workloads.asks), (selects, workloads.selects)):
        assert (digest(before, BASE, CONFIG) != digest(after, BASE, CONFIG)) is changed
        assert digest(before, MACHINE, CONFIG) == digest(after, MACHINE, CONFIG)


def test_more_pod_sets_than_a_workload_may_have_are_told_and_not_requested() -> None:
    five, six = (with_environments(*(shell(f"e{index}") for index in range(count))) for count in (5, 6))
    assert len(workloads.base(five, QUEUE, CONFIG)["spec"]["podSets"]) == workloads.MOST_POD_SETS
    assert workloads.too_many_environments(five) is None
    observed = Observed(kueue=QUEUE)
    assert [one["metadata"]["name"] for one in settlement.asked(five, observed, 2, CONFIG)] == ["demo-base"]
    assert settlement.asked(six, observed, 2, CONFIG) == ()
    hold = admission.hold(six, observed, CONFIG)
    assert hold is not None
    assert (hold.reason, hold.stalled) == ("TooManyEnvironments", True)
    assert hold.message.startswith("6 environments: a Workload has at most 8 pod sets")
    assert "remove the label kueue.x-k8s.io/queue-name, or make a new RLJob with at most 5" in hold.message
