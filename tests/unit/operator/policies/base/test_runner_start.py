"""Why pods of runners do not start, from the states of their containers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.policies.base.runner_start import pod_failure, relevant_part, start_failure
from tests.support.operator.running_environments import running

Json = dict[str, Any]
NOT_IN_PATH = 'failed to start containerd task: exec: "python": executable file not found in $PATH: unknown'
NO_FILE = 'runc create failed: exec: "/opt/python": stat /opt/python: no such file or directory'
NO_MOUNT = "error mounting /a to rootfs at /b: stat /a: no such file or directory"
NO_MODULE = "/usr/bin/python: No module named rljob_env\n"


def waiting(reason: str, message: str = "", **more: Any) -> Json:
    return {"state": {"waiting": {"reason": reason, "message": message}}, **more}


def ended(code: int, reason: str = "Error", message: str = "") -> Json:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def pod(status: Json, name: str = "main", deployment: str = "demo-environment-calc", **metadata: Any) -> Json:
    container = {"name": name, "image": "acme/agent:1", "ready": False, **status}
    owners = [{"kind": "ReplicaSet", "name": f"{deployment}-5d8c7"}]
    meta = {"name": "p", "labels": {"rljob.dev/environment": "calc"}, "ownerReferences": owners, **metadata}
    return {"metadata": meta, "status": {"containerStatuses": [container]}}


CRASHES = waiting("CrashLoopBackOff", "back-off 10s restarting failed container")


@pytest.mark.parametrize(
    ("seen", "reason", "words"),
    [
        (waiting("RunContainerError", NOT_IN_PATH), "RunnerMissing", "its command is not found in the image"),
        (waiting("CreateContainerError", NO_FILE), "RunnerMissing", "its command is not found in the image"),
        ({**CRASHES, "lastState": ended(128, "StartError", NOT_IN_PATH)}, "RunnerMissing", "not found"),
        ({"state": ended(128, "ContainerCannotRun", NO_FILE)}, "RunnerMissing", "not found"),
        ({**CRASHES, "lastState": ended(127, "Error", "sh: rljob-env: not found")}, "RunnerMissing", "exit code 127"),
        ({"state": ended(128)}, "RunnerMissing", "exit code 128"),
        ({**CRASHES, "lastState": ended(1, "Error", NO_MODULE)}, "RunnerMissing", "its Python has no module rljob_env"),
        (
            {"state": ended(1, message="No module named 'rljob_env'")},
            "RunnerMissing",
            "install it there (pip install ./envs",
        ),
        (waiting("ErrImagePull", "not found"), "ImagePullFailed", "image acme/agent:1: not found; name an image"),
        (waiting("ImagePullBackOff"), "ImagePullFailed", "acme/agent:1: ImagePullBackOff"),
        (waiting("CreateContainerConfigError", "secret x not found"), "ContainerConfigError", "secret x not found"),
        (waiting("RunContainerError", NO_MOUNT), "ContainerConfigError", "error mounting"),
        ({**CRASHES, "lastState": ended(128, "StartError", NO_MOUNT)}, "ContainerConfigError", "error mounting"),
        ({**CRASHES, "lastState": ended(1, "Error", "No module named agent")}, None, ""),
        ({**CRASHES, "lastState": ended(2, "Error", NO_MODULE)}, None, ""),
        (waiting("ContainerCreating"), None, ""),
        ({"state": {"running": {}}, "ready": True, "lastState": ended(127)}, None, ""),
    ],
)
def test_why_a_container_does_not_start(seen: Json, reason: str | None, words: str) -> None:
    why = start_failure("demo", "calc", [pod({"state": {"running": {}}, "ready": True}), pod(seen)])
    assert (why.reason if why is not None else None) == reason
    if why is not None:
        assert words in why.message
        assert why.message.startswith("environment calc: container main, image acme/agent:1")
        assert "spec.environments[].template" in why.message


def test_an_image_without_the_runner_is_told_with_what_to_install() -> None:
    why = pod_failure(pod({**CRASHES, "lastState": ended(1, "Error", NO_MODULE)}))
    assert why is not None
    assert why.message == (
        "environment calc: container main, image acme/agent:1 does not have the runner rljob-env: its Python has no "
        "module rljob_env; install it there (pip install ./envs, a folder of RLJob's sources), or name an image that "
        "has it in spec.environments[].template"
    )


def test_the_last_words_of_a_container_are_not_repeated() -> None:
    why = pod_failure(pod({"state": ended(1, message=f"approve the job of Eve\n{NO_MODULE}")}))
    assert why is not None
    assert "Eve" not in why.message


def test_pods_of_others_and_pods_that_leave_count_for_nothing() -> None:
    broken = waiting("ErrImagePull", "not found")
    assert start_failure("demo", "calc", [pod(broken)]) is not None
    for one in (
        pod(broken, deployment="demo-environment-calc-2"),
        pod(broken, ownerReferences=[{"kind": "Job", "name": "demo-environment-calc-1"}]),
        pod(broken, ownerReferences=[]),
        pod(broken, deletionTimestamp="2026-01-01T00:00:00Z"),
    ):
        assert start_failure("demo", "calc", [one]) is None


def test_a_program_that_a_sidecar_lacks_is_not_the_runner() -> None:
    assert pod_failure(pod({**CRASHES, "lastState": ended(127)}, name="proxy")) is None
    assert pod_failure(pod(waiting("ErrImagePull", "not found"), name="proxy")) is not None


def test_what_is_kept_of_a_pod_says_the_same() -> None:
    whole = {**pod(CRASHES | {"lastState": ended(127)}), "spec": {"containers": ["huge"]}}
    whole["metadata"] |= {"managedFields": ["huge"], "annotations": {"rljob.dev/settings": "huge"}}
    assert "huge" not in str(relevant_part(whole))
    assert start_failure("demo", "calc", [relevant_part(whole)]) == start_failure("demo", "calc", [whole]) is not None


_STATES = st.fixed_dictionaries(
    {},
    optional={
        "waiting": st.none() | st.fixed_dictionaries({}, optional={"reason": st.text(), "message": st.text()}),
        "terminated": st.none()
        | st.fixed_dictionaries({}, optional={"reason": st.text(), "exitCode": st.integers(), "message": st.text()}),
    },
)
_CONTAINERS = st.fixed_dictionaries(
    {}, optional={"name": st.text(), "ready": st.booleans(), "state": st.none() | _STATES, "lastState": _STATES}
)


@given(st.lists(_CONTAINERS), st.sampled_from([{}, {"labels": None}, {"labels": {}}]))
def test_odd_pods_raise_nothing(containers: list[Json], metadata: Json) -> None:
    pod_failure({"metadata": metadata, "status": {"containerStatuses": containers}})
    pod_failure({"metadata": metadata})


@pytest.mark.parametrize("overdue", [None, "ProgressDeadlineExceeded"])
def test_a_job_is_stalled_as_soon_as_it_is_known_why(overdue: str | None) -> None:
    """A Deployment that is only scaled, as after a resumption, is never overdue."""
    cluster = running()
    why = pod_failure(pod({"state": ended(127)}))
    cluster.runners["calc"] = replace(cluster.runners["calc"], ready=0, overdue=overdue, broken=why)
    cluster.settle()
    stalled, ready = cluster.status.condition("Stalled"), cluster.status.condition("Ready")
    assert stalled is not None
    assert ready is not None
    assert (stalled.reason, ready.reason) == ("RunnerMissing", "RunnerMissing")
    cluster.runners["calc"] = replace(cluster.runners["calc"], ready=2)
    cluster.settle()
    assert cluster.status.condition("Stalled") is None
