"""How pods get their accelerators, and what is said where they cannot."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import load
from rljob_api.spec import RLJob
from rljob_api.status import Role
from rljob_operator.optional_apis.device_claims import DeviceClaimCache
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.observation import Devices, Observed, Pod
from rljob_operator.policies.phases.steps import Plan
from rljob_operator.policies.plan import plan
from rljob_operator.policies.pods import devices
from rljob_operator.policies.pods.manifests import render_pod, shape
from tests.support.operator.harness import NOW, make_job, manifest

CONFIG = Config()
TRAINER_GPUS = {"acceleratorsPerReplica": 4}
ROLLOUT_GPUS = {"machines": 2, "acceleratorsPerMachine": 2, "tensorParallelSize": 2}


def job_with(accelerator: dict[str, Any] | None = None, **changes: Any) -> RLJob:
    """A job with 4 accelerators a trainer and 2 a rollout machine."""
    chosen = {} if accelerator is None else {"accelerator": accelerator}
    return make_job(**{"trainer": TRAINER_GPUS, "rollout": ROLLOUT_GPUS, **chosen, **changes})


def pod_of(job: RLJob, role: Role) -> dict[str, Any]:
    return render_pod(job, NewPod(f"{role.value.lower()}-0", role, 1), 0, CONFIG)["spec"]


def asked(job: RLJob, role: Role) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The main container's resources and the pod's claims."""
    pod = pod_of(job, role)
    return pod["containers"][0].get("resources", {}), pod.get("resourceClaims", [])


CLAIMED = {"claims": [{"name": "rljob-accelerators"}]}


def claim(template: str) -> list[dict[str, str]]:
    return [{"name": "rljob-accelerators", "resourceClaimTemplateName": template}]


@pytest.mark.parametrize(
    ("job", "trainer", "rollout"),
    [
        (job_with(), ({"limits": {"nvidia.com/gpu": "4"}}, []), ({"limits": {"nvidia.com/gpu": "2"}}, [])),
        (
            job_with(scheduling={"acceleratorResource": "amd.com/gpu"}),
            ({"limits": {"amd.com/gpu": "4"}}, []),
            ({"limits": {"amd.com/gpu": "2"}}, []),
        ),
        (
            job_with({"resource": "google.com/tpu"}),
            ({"limits": {"google.com/tpu": "4"}}, []),
            ({"limits": {"google.com/tpu": "2"}}, []),
        ),
        (job_with({"claimTemplate": "linked"}), (CLAIMED, claim("linked")), (CLAIMED, claim("linked"))),
        (
            job_with({"deviceClass": "gpu.amd.com"}),
            (CLAIMED, claim("demo-trainer-ce7b9cc4")),
            (CLAIMED, claim("demo-rollout-cfa7ed45")),
        ),
        (job_with({"kind": "None"}), ({}, []), ({}, [])),
        (
            job_with({"kind": "None"}, rollout={**ROLLOUT_GPUS, "accelerator": {"resource": "amd.com/gpu"}}),
            ({}, []),
            ({"limits": {"amd.com/gpu": "2"}}, []),
        ),
        (
            job_with(trainer={**TRAINER_GPUS, "accelerator": {"claimTemplate": "linked"}}),
            (CLAIMED, claim("linked")),
            ({"limits": {"nvidia.com/gpu": "2"}}, []),
        ),
        (job_with({"deviceClass": "gpu.amd.com"}, trainer={}), ({}, []), (CLAIMED, claim("demo-rollout-cfa7ed45"))),
    ],
    ids=[
        *("default", "old field", "resource", "claim template", "device class", "none"),
        *("rollout apart", "trainer apart", "trainer on CPUs"),
    ],
)
def test_what_pods_ask_for(job: RLJob, trainer: Any, rollout: Any) -> None:
    assert asked(job, Role.TRAINER) == trainer
    assert asked(job, Role.ROLLOUT) == rollout
    assert asked(job, Role.COORDINATOR) == ({}, []), "it computes nothing"


def test_claims_of_the_template_stay_beside_the_operators() -> None:
    main = {"name": "main", "resources": {"limits": {"cpu": "2"}, "claims": [{"name": "nic"}]}}
    spec = {"resourceClaims": [{"name": "nic", "resourceClaimName": "shared"}], "containers": [main]}
    job = job_with({"claimTemplate": "gpus"}, rollout={**ROLLOUT_GPUS, "template": {"spec": spec}})
    resources, claims = asked(job, Role.ROLLOUT)
    assert resources == {"limits": {"cpu": "2"}, "claims": [{"name": "nic"}, {"name": "rljob-accelerators"}]}
    assert claims == [*spec["resourceClaims"], *claim("gpus")]
    assert job.spec.rollout.template.spec == spec, "the user's template is not written to"


def test_shapes_of_jobs_that_are_stored_already_stay() -> None:
    """Another shape would have the pending pods of every job made again by a new version of the operator."""
    expected = {Role.COORDINATOR: "0ed7104560", Role.TRAINER: "ad008ffd4b", Role.ROLLOUT: "8d2936f3f1"}
    assert {role: shape(job_with().spec, role, Config("i")) for role in Role} == expected
    same = job_with({"resource": "nvidia.com/gpu"})
    assert {role: shape(same.spec, role, Config("i")) for role in Role} == expected, "the same pods, said otherwise"


@pytest.mark.parametrize("role", [Role.TRAINER, Role.ROLLOUT])
def test_another_way_is_another_shape(role: Role) -> None:
    ways = [None, {"resource": "a.b/c"}, {"deviceClass": "c"}, {"claimTemplate": "c"}, {"kind": "None"}]
    shapes = {shape(job_with(way).spec, role, CONFIG) for way in ways}
    assert len(shapes) == len(ways)


# --- templates and obstacles ------------------------------------------------------------------------------------------

CLASS = job_with({"deviceClass": "gpu.amd.com"})
TEMPLATE = job_with({"claimTemplate": "linked"})
OWN = frozenset(devices.template_names(CLASS))


def decided(job: RLJob, facts: Devices, *pods: Pod, children: bool = False) -> Plan:
    return plan(job, Observed(pods, devices=facts, children_present=children), NOW, CONFIG)


def templates(found: Plan) -> dict[str, Any]:
    return {one["metadata"]["name"]: one for one in found.children if one["kind"] == "ResourceClaimTemplate"}


def created(found: Plan) -> list[str]:
    return [creation.new.machine for creation in found.creations]


def stalled(found: Plan) -> ConditionReason | None:
    assert found.status is not None
    condition = found.status.condition("Stalled")
    return None if condition is None else ConditionReason(condition.reason, condition.message)


EVERY = ["coordinator-0", "trainer-0", "rollout-0", "rollout-1"]


def test_a_device_class_becomes_a_template_of_each_role_before_its_pods() -> None:
    found = decided(CLASS, Devices())
    made = templates(found)
    assert set(made) == OWN
    assert created(found) == EVERY
    assert stalled(found) is None
    (rollout,) = [one for name, one in made.items() if "rollout" in name]
    assert rollout["apiVersion"] == "resource.k8s.io/v1"
    assert rollout["metadata"]["ownerReferences"][0]["name"] == "demo"
    (request,) = rollout["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "gpu.amd.com", "allocationMode": "ExactCount", "count": 2}
    assert rollout["spec"]["metadata"]["labels"]["rljob.dev/role"] == "rollout"


def test_a_template_is_made_again_only_where_it_was_deleted() -> None:
    assert set(templates(decided(CLASS, Devices(templates=OWN), children=True))) == set()
    (kept, *gone) = sorted(OWN)
    assert set(templates(decided(CLASS, Devices(templates=frozenset({kept})), children=True))) == set(gone)


def test_another_number_is_another_template() -> None:
    """What a template asks for never changes once it is made."""
    more = job_with({"deviceClass": "gpu.amd.com"}, rollout={**ROLLOUT_GPUS, "acceleratorsPerMachine": 4})
    assert devices.template_name(more, Role.ROLLOUT) != devices.template_name(CLASS, Role.ROLLOUT)
    assert devices.template_name(more, Role.TRAINER) == devices.template_name(CLASS, Role.TRAINER)


@pytest.mark.parametrize("job", [CLASS, TEMPLATE], ids=["class", "template"])
def test_where_claims_are_not_served_no_pod_goes_without_its_devices(job: RLJob) -> None:
    found = decided(job, Devices(served=False))
    assert created(found) == ["coordinator-0"]
    assert templates(found) == {}
    stall = stalled(found)
    assert stall is not None
    assert stall.reason == "DeviceClaimsNotServed"
    for words in ("spec.accelerator", "resource.k8s.io/v1", "Upgrade Kubernetes to 1.34", "spec.accelerator.resource"):
        assert words in stall.message
    assert found.again_seconds == devices.RECHECK_SECONDS


def test_a_template_that_is_absent_is_told_by_its_path() -> None:
    rollout = {**ROLLOUT_GPUS, "accelerator": {"claimTemplate": "linked"}}
    found = decided(job_with(rollout=rollout), Devices())
    assert created(found) == ["coordinator-0", "trainer-0"], "the trainer asks for nvidia.com/gpu"
    assert stalled(found) == ConditionReason(
        "ClaimTemplateNotFound",
        "spec.rollout.accelerator.claimTemplate: namespace default has no ResourceClaimTemplate linked. No rollout pod "
        "is made. Create it there: pods cannot use a template of another namespace.",
    )
    assert found.again_seconds == devices.RECHECK_SECONDS
    there = decided(job_with(rollout=rollout), Devices(templates=frozenset({"linked"})))
    assert created(there) == EVERY
    assert stalled(there) is None


def pods(node: str | None, unschedulable: str | None = None) -> list[Pod]:
    roles = {"coordinator-0": Role.COORDINATOR, "trainer-0": Role.TRAINER, "rollout-0": Role.ROLLOUT}
    roles["rollout-1"] = Role.ROLLOUT
    return [
        Pod(
            f"demo-{machine}-1",
            machine,
            role,
            machine,
            1,
            shape=shape(TEMPLATE.spec, role, CONFIG),
            node=node,
            unschedulable=None if role is Role.COORDINATOR else unschedulable,
            created=NOW - timedelta(minutes=1),
        )
        for machine, role in roles.items()
    ]


@pytest.mark.parametrize(("node", "reason"), [("n1", None), (None, "ClaimTemplateNotFound")])
def test_a_template_that_goes_matters_to_pods_without_a_node_alone(node: str | None, reason: str | None) -> None:
    stall = stalled(decided(TEMPLATE, Devices(), *pods(node), children=True))
    assert (stall.reason if stall is not None else None) == reason


UNMET = "0/4 nodes are available: 4 cannot allocate all claims."


@pytest.mark.parametrize(
    ("job", "said", "told"),
    [
        (CLASS, UNMET, "Each rollout pod claims 2 devices of DeviceClass gpu.amd.com (spec.accelerator.deviceClass)."),
        (TEMPLATE, UNMET, "claims what ResourceClaimTemplate linked says (spec.accelerator.claimTemplate)."),
        (CLASS, "request accelerators: device class gpu.amd.com does not exist", "kubectl get deviceclasses"),
        (CLASS, "0/4 nodes are available: 4 Insufficient cpu.", None),
        (job_with(), UNMET, "claims 2 of nvidia.com/gpu (spec.accelerator.resource), where a DeviceClass serves that."),
        (job_with({"kind": "None"}), UNMET, None),
    ],
)
def test_claims_that_cannot_be_met_are_explained(job: RLJob, said: str, told: str | None) -> None:
    there = Devices(templates=frozenset(devices.template_names(job)))
    shaped = [replace(pod, shape=shape(job.spec, pod.role, CONFIG)) for pod in pods(None, said)]
    stall = stalled(decided(job, there, *shaped, children=True))
    assert stall is not None
    assert stall.reason == "Unschedulable"
    assert said in stall.message
    assert ("claims" in stall.message.replace(said, "")) is (told is not None)
    assert told is None or told in stall.message


WAYS = st.one_of(
    st.none(),
    st.sampled_from(
        [{"resource": "a.b/c"}, {"deviceClass": "c"}, {"claimTemplate": "c"}, {"claimTemplate": "d"}, {"kind": "None"}]
    ),
)


@given(WAYS, WAYS, WAYS, st.integers(0, 4), st.integers(0, 4), st.booleans(), st.sets(st.sampled_from("cd")))
def test_no_pod_is_made_without_its_claim_template(
    everywhere: Any, trainer: Any, rollout: Any, ranks: int, machine: int, served: bool, present: set[str]
) -> None:
    """Whatever is asked: a pod has its accelerators in exactly one way, and a claim's template is there before it."""
    spec: dict[str, Any] = {
        "trainer": {"acceleratorsPerReplica": ranks, **({"accelerator": trainer} if trainer and ranks else {})},
        "rollout": {"acceleratorsPerMachine": machine, **({"accelerator": rollout} if rollout and machine else {})},
        **({"accelerator": everywhere} if everywhere and ranks + machine else {}),
    }
    document = manifest(**spec)
    document["metadata"] |= {"uid": "1"}
    job = load(document)
    found = decided(job, Devices(served, frozenset(present)))
    available = {*present, *templates(found)} if served else set()
    barred = {role: stall.reason for role, stall in devices.obstacles(job, Devices(served, frozenset(present))).items()}
    for creation in found.creations:
        resources, claims = asked(job, creation.new.role)
        number = devices.count(job.spec, creation.new.role)
        amounts = [amount for name, amount in resources.get("limits", {}).items() if "/" in name]
        accelerator = job.spec.accelerator_of(creation.new.role.value.lower())
        ways = 0 if number == 0 or accelerator.kind is not None else 1
        assert len(amounts) + len(claims) == ways
        assert amounts in ([], [str(number)])
        assert {one["resourceClaimTemplateName"] for one in claims} <= available
    assert {creation.new.role for creation in found.creations} == set(Role) - set(barred)
    stall = stalled(found)
    assert (stall is not None) is bool(barred)


# --- what is there ----------------------------------------------------------------------------------------------------


class Asked:
    """A client that counts what it is asked."""

    def __init__(self, served: bool, present: set[str]) -> None:
        self.served = served
        self.present = present
        self.log: list[str] = []

    async def serves(self, group: str, version: str) -> bool:
        self.log.append(f"{group}/{version}")
        return self.served

    async def find(self, resource: Any, namespace: str, name: str) -> dict[str, Any] | None:
        self.log.append(name)
        return {} if name in self.present else None


async def test_absent_objects_are_checked_again_before_present_ones() -> None:
    kube, time = Asked(True, set()), [0.0]
    book = DeviceClaimCache(kube, fresh_seconds=5.0, clock=lambda: time[0])  # type: ignore[arg-type]
    assert await book.facts(job_with()) == Devices()
    assert kube.log == [], "nothing is asked for a job that claims nothing"
    assert await book.facts(TEMPLATE) == Devices()
    kube.present.add("linked")
    assert await book.facts(TEMPLATE) == Devices(templates=frozenset({"linked"}))
    assert kube.log == ["resource.k8s.io/v1", "linked", "linked"]
    kube.present.clear()
    assert await book.facts(TEMPLATE) == Devices(templates=frozenset({"linked"}))
    time[0] = 5.0
    assert await book.facts(TEMPLATE) == Devices()
    kube.served, time[0] = False, 10.0
    assert await book.facts(TEMPLATE) == Devices(served=False)
