"""Bad templates of pods."""

from __future__ import annotations

from typing import Any

from rljob_api.errors import ABSENT
from tests.support.api.invalid_specs.case import Case, inside, one
from tests.support.api.invalid_specs.environments import CALC

_POD = "spec.rollout.template.spec"
_MAIN = f"{_POD}.containers[0]"


def main(**fields: Any) -> dict[str, Any]:
    """Edits: the main container of the rollout template."""
    return {f"{_POD}.containers": [{"name": "main", **fields}]}


_APART = {"spec.rewards[1]": {"name": "c", "kind": "Code", "code": {"parallelism": 2, "memoryBytes": "256Mi"}}}
_COORDINATOR = "spec.coordinator.template.spec"

TEMPLATES = [
    Case(
        {f"{_COORDINATOR}.containers": [{"name": "rewards"}]},
        f"{_COORDINATOR}.containers[0].name",
        "must be left out: that container is the operator's",
        value="rewards",
        server=False,
    ),
    Case(
        {f"{_COORDINATOR}.containers": [{"name": "gateway", "image": "a:1"}]},
        f"{_COORDINATOR}.containers[0].name",
        "must be left out: that container is the operator's, for environments",
        value="gateway",
        server=False,
    ),
    Case(
        {
            "spec.environments": [CALC],
            f"{_COORDINATOR}.containers": [{"name": "gateway", "env": [{"name": "RLJOB_NAME", "value": "x"}]}],
        },
        f"{_COORDINATOR}.containers[0].env[0].name",
        "the operator sets this variable",
        value="RLJOB_NAME",
        server=False,
    ),
    Case({**_APART, f"{_COORDINATOR}.containers": "rewards"}, f"{_COORDINATOR}.containers", "must be a list"),
    Case(
        {**_APART, f"{_COORDINATOR}.shareProcessNamespace": True},
        f"{_COORDINATOR}.shareProcessNamespace",
        "must be left out with rewards of kind Code or Python",
        value=True,
        server=False,
    ),
    Case(
        {
            **_APART,
            f"{_COORDINATOR}.containers": [{"name": "rewards", "resources": {"limits": {"memory": "1023Mi"}}}],
        },
        f"{_COORDINATOR}.containers[0].resources.limits[memory]",
        "must be at least 1073741824: parallelism x memoryBytes",
        value=1023 << 20,
        server=False,
    ),
    Case(
        {**_APART, f"{_COORDINATOR}.containers": [{"name": "rewards", "env": [{"name": "RLJOB_NAME", "value": "x"}]}]},
        f"{_COORDINATOR}.containers[0].env[0].name",
        "the operator sets this variable",
        value="RLJOB_NAME",
        server=False,
    ),
    one(f"{_POD}.restartPolicy", "Always", "must be left out: the operator replaces a pod that failed"),
    one(f"{_POD}.runtimeClassName", "/kata", "must be a name: lower-case letters", server=False),
    one(f"{_POD}.runtimeClassName", "", "must be a name: lower-case letters", server=False),
    one(f"{_POD}.priorityClassName", "Urgent", "must be a name: lower-case letters", server=False),
    one(f"{_POD}.hostNetwork", True, "is not supported"),
    one(f"{_POD}.hostPID", True, "is not supported"),
    one(f"{_POD}.hostname", "worker", "must be left out", server=False),
    one(f"{_POD}.nodeName", "node-1", "use nodeSelector or affinity", server=False),
    one(f"{_POD}.activeDeadlineSeconds", 5, "use spec.runPolicy.activeDeadlineSeconds", server=False),
    one(f"{_POD}.priority", 7, "the API server takes it from priorityClassName", server=False),
    one(f"{_POD}.nodeSelecter", {"a": "b"}, "did you mean nodeSelector?", server=False),
    one(f"{_POD}.automountServiceAccountToken", True, "only the coordinator speaks to the API", server=False),
    one("spec.coordinator.template.spec.serviceAccountName", "me", "must be left out", server=False),
    one("spec.coordinator.template.spec.serviceAccount", "me", "must be left out", server=False),
    one("spec.trainer.template.metadata.labels[rljob.dev/job]", "x", "this key is the operator's", server=False),
    one("spec.trainer.template.metadata.labels[team]", "a b", "must be at most 63 letters", server=False),
    one("spec.trainer.template.metadata.annotations[a/b/c]", "x", "must have a key such as team", server=False),
    one(f"{_POD}.containers", "main", "must be a list"),
    inside(f"{_POD}.containers", [{"image": "a"}], f"{_MAIN}.name", ABSENT, "is required"),
    inside(
        f"{_POD}.containers",
        [{"name": "Main", "image": "a"}],
        f"{_MAIN}.name",
        "Main",
        "must be at most 63 lower-case letters",
    ),
    inside(f"{_POD}.containers", [{"name": "proxy"}], f"{_MAIN}.image", ABSENT, "proxy is a sidecar", server=False),
    inside(
        f"{_POD}.containers",
        [{"name": "main"}, {"name": "main"}],
        f"{_POD}.containers[1].name",
        "main",
        "must be unique",
    ),
    inside(
        f"{_POD}.initContainers",
        [{"name": "main", "image": "a"}],
        f"{_POD}.initContainers[0].name",
        "main",
        "must not be main",
        server=False,
    ),
    Case(
        main(env=[{"name": "RLJOB_ROLE", "value": "x"}]),
        f"{_MAIN}.env[0].name",
        "the operator sets this variable",
        value="RLJOB_ROLE",
        server=False,
    ),
    Case(
        main(volumeMounts=[{"name": "v", "mountPath": "/var/lib/rljob/store/"}]),
        f"{_MAIN}.volumeMounts[0].mountPath",
        "is the operator's; mount it elsewhere",
        value="/var/lib/rljob/store",
        server=False,
    ),
    Case(main(resource={}), f"{_MAIN}.resource", "did you mean resources?", value={}, server=False),
    Case(
        main(resources={"limits": {"memory": "4GB"}}),
        f"{_MAIN}.resources.limits[memory]",
        "must be a quantity such as 2, 500m or 4Gi",
        value="4GB",
        server=False,
    ),
    Case(
        main(resources={"limits": {"nvidia.com/gpu": 4}}),
        f"{_MAIN}.resources.limits[nvidia.com/gpu]",
        "the number of accelerators the spec names (0)",
        value=4,
        server=False,
    ),
    one(f"{_POD}.resourceClaims", {"name": "gpus"}, "must be a list", server=False),
    inside(
        f"{_POD}.resourceClaims",
        [{"name": "rljob-accelerators", "resourceClaimName": "mine"}],
        f"{_POD}.resourceClaims[0].name",
        "rljob-accelerators",
        "must not begin with rljob-: those resourceClaims are the operator's",
        server=False,
    ),
    Case(
        {
            **main(resources={"limits": {"amd.com/gpu": 3}}),
            "spec.rollout.acceleratorsPerMachine": 2,
            "spec.rollout.accelerator": {"resource": "amd.com/gpu"},
        },
        f"{_MAIN}.resources.limits[amd.com/gpu]",
        "the number of accelerators the spec names (2)",
        value=3,
        server=False,
    ),
    inside(
        f"{_POD}.volumes",
        [{"name": "rljob-auth"}],
        f"{_POD}.volumes[0].name",
        "rljob-auth",
        "must not begin",
        server=False,
    ),
]
