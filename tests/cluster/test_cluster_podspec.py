"""What process nodes make of a pod's spec."""

import pytest
from hack.cluster import podspec
from hack.cluster.podspec import ContainerState, PodError, Tally
from hack.cluster.settings import RUNTIME_IMAGE
from hypothesis import given
from hypothesis import strategies as st

POD = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u1",
        "labels": {"rljob.dev/machine": "rollout-0"},
        "annotations": None,
    },
    "spec": {"nodeName": "node-1", "serviceAccountName": "sa"},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)/$(B)", "1/$(B)"),
        ("$$(A)", "$(A)"),
        ("$(A", "$(A"),
        ("$A", "$A"),
        ("$(A.b-c)", "x"),
    ],
)
def test_expand(text, expected):
    assert podspec.expand(text, {"A": "1", "A.b-c": "x"}) == expected


@given(st.text(alphabet="$()AB "))
def test_expand_leaves_text_without_known_names_alone_but_for_escapes(text):
    assert podspec.expand(text, {}) == text.replace("$$", "$")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "p"),
        ("metadata.uid", "u1"),
        ("spec.nodeName", "node-1"),
        ("spec.serviceAccountName", "sa"),
        ("status.podIP", "10.0.0.2"),
        ("status.hostIP", "10.0.0.1"),
        ("metadata.labels['rljob.dev/machine']", "rollout-0"),
        ("metadata.annotations['none']", ""),
    ],
)
def test_field(path, expected):
    assert podspec.field(POD, path, "10.0.0.2", "10.0.0.1") == expected


def test_unknown_field_is_named():
    with pytest.raises(PodError, match=r"spec\.foo"):
        podspec.field(POD, "spec.foo", "", "")


def environment(container):
    stored = {("configmaps", "cm"): {"K": "v"}, ("secrets", "s"): {"T": "$(X)"}}
    return podspec.environment(container, lambda p: f"<{p}>", lambda kind, name: stored.get((kind, name)))


def test_environment_in_order_with_references():
    container = {
        "envFrom": [
            {"configMapRef": {"name": "cm"}, "prefix": "P_"},
            {"secretRef": {"name": "gone", "optional": True}},
        ],
        "env": [
            {"name": "X", "value": "1"},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "URL", "value": "http://$(IP):$(X)/$(LATER)"},
            {"name": "LATER", "value": ""},
            {"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "T"}}},
            {"name": "NO", "valueFrom": {"secretKeyRef": {"name": "s", "key": "no", "optional": True}}},
            {"name": "P_K", "value": "over"},
        ],
    }
    assert environment(container) == {
        "P_K": "over",
        "X": "1",
        "IP": "<status.podIP>",
        "URL": "http://<status.podIP>:1/$(LATER)",
        "LATER": "",
        "T": "$(X)",  # only what the pod's author wrote is expanded
    }


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"secretKeyRef": {"name": "gone", "key": "k"}}, 'secrets "gone" not found'),
        ({"configMapKeyRef": {"name": "cm", "key": "no"}}, "configmaps cm has no key no"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "resourceFieldRef is not supported"),
    ],
)
def test_missing_sources_are_named(source, message):
    with pytest.raises(PodError, match=message) as caught:
        environment({"env": [{"name": "E", "valueFrom": source}]})
    assert caught.value.reason == "CreateContainerConfigError"


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({"image": "x", "command": ["a", "$(V)"], "args": ["$(W)"]}, ["a", "1", "$(W)"]),
        ({"image": RUNTIME_IMAGE, "args": ["worker"]}, ["python", "-m", "rljob_runtime.pod", "worker"]),
    ],
)
def test_command(container, expected):
    assert podspec.command(container, {"V": "1"}) == expected


def test_command_of_an_unknown_image():
    with pytest.raises(PodError, match="cannot look into busybox"):
        podspec.command({"image": "busybox"}, {})


def test_port_by_name_and_number():
    container = {"ports": [{"name": "http", "containerPort": 8080}]}
    assert podspec.port(container, "http") == podspec.port(container, 8080) == 8080
    with pytest.raises(PodError, match="named web"):
        podspec.port(container, "web")


@pytest.mark.parametrize(
    ("policy", "code", "expected"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 137, True),
        ("Never", 0, False),
        ("Never", 1, False),
    ],
)
def test_restarts(policy, code, expected):
    assert podspec.restarts(policy, code) is expected


def test_backoff_doubles_up_to_a_minute():
    assert [podspec.backoff(n) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


def run_tally(success, failure, results):
    tally, verdict = Tally(success, failure), None
    for ok in results:
        changed = tally.record(ok)
        verdict = verdict if changed is None else changed
    return verdict


@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.booleans(), max_size=12))
def test_tally_follows_the_last_run_that_was_long_enough(success, failure, results):
    expected, length, previous = None, 0, None
    for ok in results:
        length = length + 1 if ok == previous else 1
        previous = ok
        if length >= (success if ok else failure):
            expected = ok
    assert run_tally(success, failure, results) is expected


def state(name, **value):
    return ContainerState(name, "image", value, {})


RUNNING = {"running": {"startedAt": "t"}}
DONE = podspec.terminated(0, "t", "t")
BROKEN = podspec.terminated(137, "t", "t")


@pytest.mark.parametrize(
    ("init_done", "states", "policy", "expected"),
    [
        (False, [podspec.waiting("ContainerCreating")], "Always", "Pending"),
        (True, [podspec.waiting("CreateContainerError")], "Always", "Pending"),
        (True, [RUNNING], "Never", "Running"),
        (True, [RUNNING, DONE], "Never", "Running"),
        (True, [DONE, DONE], "Never", "Succeeded"),
        (True, [DONE, BROKEN], "Never", "Failed"),
        (True, [BROKEN], "OnFailure", "Running"),
        (True, [DONE], "OnFailure", "Succeeded"),
        (True, [DONE], "Always", "Running"),
    ],
)
def test_phase(init_done, states, policy, expected):
    assert podspec.phase(init_done, [state(str(n), **s) for n, s in enumerate(states)], policy) == expected


def test_conditions_keep_the_time_of_their_last_change():
    first = podspec.conditions(True, False, [], "t1")
    second = podspec.conditions(True, True, first, "t2")
    times = {c["type"]: (c["status"], c["lastTransitionTime"]) for c in second}
    assert times["Initialized"] == ("True", "t1")
    assert times["Ready"] == times["ContainersReady"] == ("True", "t2")
