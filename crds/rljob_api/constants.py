"""Constants that packages share: the API group, labels, environment variables, paths, ports and field managers."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

GROUP: Final = "rljob.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "RLJob"
PLURAL: Final = "rljobs"
SINGULAR: Final = "rljob"
LIST_KIND: Final = "RLJobList"
SHORT_NAME: Final = "rlj"
CRD_NAME: Final = f"{PLURAL}.{GROUP}"

# Raised by one with every change of the fields. The chart's policy refuses a downgrade of an installed CRD: the server
# would drop unknown fields from each object that is written.
SCHEMA_REVISION: Final = 26
SCHEMA_REVISION_ANNOTATION: Final = f"{GROUP}/schema-revision"

# Controller of a job without `spec.managedBy`.
MANAGED_BY_OPERATOR: Final = f"{GROUP}/operator"

# Server-side apply: one manager for each part of the object.
OPERATOR_FIELD_MANAGER: Final = "rljob-operator"
COORDINATOR_FIELD_MANAGER: Final = "rljob-coordinator"

LABEL_JOB: Final = f"{GROUP}/job"
LABEL_ROLE: Final = f"{GROUP}/role"
LABEL_MACHINE: Final = f"{GROUP}/machine"
LABEL_INCARNATION: Final = f"{GROUP}/incarnation"
LABEL_SHAPE: Final = f"{GROUP}/shape"
LABEL_EPOCH: Final = f"{GROUP}/epoch"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY_VALUE: Final = "rljob"
# Labels of the runners' pods: job and environment. They lack `LABEL_JOB`, which makes a pod a machine of the job.
LABEL_ENVIRONMENTS_OF: Final = f"{GROUP}/environments-of"
LABEL_ENVIRONMENT: Final = f"{GROUP}/environment"
# Label of a Deployment of runners: a hash of the NetworkPolicies that its pods have.
LABEL_EGRESS: Final = f"{GROUP}/egress"
# Label of the egress proxy of a job: of its pod, which is no machine, and of its Deployment.
LABEL_EGRESS_OF: Final = f"{GROUP}/egress-of"
# Annotation of a runner's pod: its settings as JSON, which the pod mounts as `ENVIRONMENT_SETTINGS`.
ANNOTATION_SETTINGS: Final = f"{GROUP}/settings"

ROLE_COORDINATOR: Final = "coordinator"
ROLE_TRAINER: Final = "trainer"
ROLE_ROLLOUT: Final = "rollout"
ROLE_ENVIRONMENT: Final = "environment"  # of templates and names: runners are no machines
ENVIRONMENT_TERM: Final = "environment"  # of a reward that an environment gives in place of rules

MAIN_CONTAINER: Final = "main"

# Exit code of a runner whose pod has had its one episode (`reset: Pod`). Programs rarely choose it by themselves.
RUNNER_POD_USED: Final = 86
# Container of the coordinator's pod that runs foreign reward code: no token, no Ray.
REWARDS_CONTAINER: Final = "rewards"
REWARDS_DIR: Final = "/run/rljob"
REWARDS_SOCKET: Final = f"{REWARDS_DIR}/rewards.sock"
# Container of every coordinator's pod: Ray's head, without the token of the API server.
HEAD_CONTAINER: Final = "ray-head"
RAY_DIR: Final = "/tmp/ray"
RAY_TABLES: Final = "ray"  # a folder of the coordinator's state
# Container of the coordinator's pod in a job with environments: the gateway, without the token of the API server.
GATEWAY_CONTAINER: Final = "gateway"
# A volume that `main` and `gateway` share: the coordinator writes what the gateway reads.
GATEWAY_DIR: Final = "/run/rljob/gateway"
# Mounted in `gateway` only: the key of capabilities and the key of runner keys, both as hexadecimal text.
GATEWAY_KEYS_DIR: Final = "/etc/rljob/gateway-keys"
CAPABILITY_KEY: Final = "capability-key"
RUNNERS_KEY: Final = "runners-key"
# Mounted in a runner's pod: its settings and its runner key.
ENVIRONMENT_DIR: Final = "/etc/rljob/environment"
ENVIRONMENT_SETTINGS: Final = f"{ENVIRONMENT_DIR}/settings.json"
ENVIRONMENT_KEY: Final = "key"
# The egress proxy of a job: its port, its settings, and the key of proxy keys. Runners have a key of their environment.
EGRESS_PORT: Final = 3128
EGRESS_DIR: Final = "/etc/rljob/egress"
EGRESS_SETTINGS: Final = f"{EGRESS_DIR}/settings.json"
PROXY_KEYS_KEY: Final = "proxy-keys-key"
ENV_PROXY_KEY: Final = "RLJOB_PROXY_KEY"
# In a runner's pod: the folder in which relative paths of functions and commands begin.
CODE_DIR: Final = "/code"

# Warnings in `runtime.warnings` that block the job: each is also the reason of Stalled.
SANDBOX_UNAVAILABLE: Final = "SandboxUnavailable"
REWARDS_UNAVAILABLE: Final = "RewardsUnavailable"
EXPORT_FAILED: Final = "ExportFailed"
ENGINE_MISMATCH: Final = "EngineMismatch"
STORE_HELD: Final = "StoreHeld"
HALTING: Final = (SANDBOX_UNAVAILABLE, REWARDS_UNAVAILABLE, EXPORT_FAILED, ENGINE_MISMATCH, STORE_HELD)

# A suspect of this reason needs no second witness: the coordinator has observed failures of the machine's work.
KEEPS_FAILING: Final = "KeepsFailing"

ENV_PREFIX: Final = "RLJOB_"
ENV_NAME: Final = "RLJOB_NAME"
ENV_NAMESPACE: Final = "RLJOB_NAMESPACE"
ENV_UID: Final = "RLJOB_UID"
ENV_MACHINE: Final = "RLJOB_MACHINE"
ENV_INCARNATION: Final = "RLJOB_INCARNATION"
ENV_ROLE: Final = "RLJOB_ROLE"
ENV_COORDINATOR_ADDRESS: Final = "RLJOB_COORDINATOR_ADDRESS"
ENV_POD_NAME: Final = "POD_NAME"
ENV_POD_UID: Final = "POD_UID"
ENV_POD_IP: Final = "POD_IP"
ENV_NODE_NAME: Final = "NODE_NAME"

AUTH_DIR: Final = "/etc/rljob/auth"
AUTH_RAY_TOKEN: Final = "ray-token"
AUTH_RELAY_KEY: Final = "relay-key"
STATE_DIR: Final = "/var/lib/rljob"
SHM_DIR: Final = "/dev/shm"
TMP_DIR: Final = "/tmp"
# In the pods of runners with `reset: Pod`: what lives as long as the pod.
POD_DIR: Final = "/var/lib/rljob-pod"
# A `pvc://CLAIM/sub/path` in the spec is the folder CLAIMS_DIR/CLAIM/sub/path in every pod, mounted read-only.
CLAIMS_DIR: Final = "/mnt/rljob"

# Default duration of the Lease that a coordinator renews, for the operator and for the coordinator.
COORDINATOR_LEASE_SECONDS: Final = 15

HEALTH_PORT: Final = 8080
GATEWAY_PORT: Final = 8000
GATEWAY_METRICS_PORT: Final = 8081
RAY_PORT: Final = 6379
PRE_STOP_POLL_SECONDS: Final = 0.5
PRE_STOP_PATIENCE: Final = 4
"""Checks in a row without a coordinator after which a pod no longer waits for one."""

# The longest generated name is `<job>-coordinator-0-<incarnation>`. It is a label value and a host name, so at most 63
# characters; incarnations get five digits.
MAX_JOB_NAME_LENGTH: Final = 63 - len("-coordinator-0-99999")
JOB_NAME_PATTERN: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
# The status holds a copy of the accepted spec, and etcd accepts objects of 1.5 MB.
MAX_SPEC_LENGTH: Final = 1 << 18


def machine_name(role: str, index: int) -> str:
    """Name a machine, e.g. `rollout-0`: pods fill it, one incarnation after the other."""
    return f"{role}-{index}"


def pod_name(job: str, machine: str, incarnation: int) -> str:
    """Name a pod, e.g. `demo-rollout-0-1`.

    A name is never used twice, so a pod stuck on a dead node blocks nothing.
    """
    return f"{job}-{machine}-{incarnation}"


def coordinator_service(job: str) -> str:
    """Name the headless Service through which workers find the coordinator."""
    return f"{job}-coordinator"


def auth_secret(job: str) -> str:
    """Name the Secret that is mounted at `AUTH_DIR`."""
    return f"{job}-auth"


def auth_secret_of(job: str, uid: str) -> str:
    """Name the Secret of the job with this uid.

    The operator may create Secrets but not read them, so the name alone must show that a Secret is not from an earlier
    job of the same name.
    """
    return f"{auth_secret(job)}-{uid[:8]}"


def environment_deployment(job: str, environment: str) -> str:
    """Name the Deployment of an environment's runners."""
    return f"{job}-{ROLE_ENVIRONMENT}-{environment}"


def environments_policy(job: str) -> str:
    """Name the NetworkPolicy of all runners of a job."""
    return f"{job}-environments"


def environments_secret(job: str) -> str:
    """Name the Secret with the keys of gateway and runners, without the job's uid."""
    return f"{job}-environments"


def environments_secret_of(job: str, uid: str) -> str:
    """Name the Secret with the keys of gateway and runners of the job with this uid, as `auth_secret_of` does."""
    return f"{environments_secret(job)}-{uid[:8]}"


def runner_key_item(environment: str) -> str:
    """Name the item of that Secret that is an environment's runner key."""
    return f"runner-key-{environment}"


def egress_proxy(job: str) -> str:
    """Name Deployment, Service and NetworkPolicy of a job's egress proxy."""
    return f"{job}-egress"


def egress_secret_of(job: str, uid: str) -> str:
    """Name the Secret with the keys of the egress proxy of the job with this uid, as `auth_secret_of` does."""
    return f"{egress_proxy(job)}-{uid[:8]}"


def proxy_key_item(environment: str) -> str:
    """Name the item of that Secret that is an environment's proxy key."""
    return f"proxy-key-{environment}"


PRIVATE_NETWORKS: Final = ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
"""Addresses of networks that are not the Internet."""
LINK_LOCAL_NETWORKS: Final = ("169.254.0.0/16", "fe80::/10")
METADATA_NETWORKS: Final = (
    *LINK_LOCAL_NETWORKS,
    "100.100.100.200/32",
    "168.63.129.16/32",
    "192.0.0.192/32",
    "fd00:ec2::254/128",
    "fd20:ce::254/128",
)
"""Link-local addresses, and those of metadata services of clouds, which serve the credentials of nodes."""


SAMPLES_KEY_HEADER: Final = "Rljob-Samples-Key"
"""Header of requests for samples to a coordinator's pod."""


def samples_key(relay_key: bytes) -> str:
    """Derive the key of requests for samples. It does not reveal the relay key."""
    return hmac.new(relay_key, b"rljob samples", hashlib.sha256).hexdigest()


def claim_path(source: str) -> tuple[str, str] | None:
    """Return claim and path in the pod of a `pvc://claim/sub/path`; None for any other source."""
    match = re.fullmatch(r"pvc://([^/]+)(?:/(.*))?", source)
    if match is None:
        return None
    claim, below = match.group(1), (match.group(2) or "").strip("/")
    return claim, f"{CLAIMS_DIR}/{claim}/{below}".rstrip("/")
