"""Object names: names and labels of the objects that a job owns."""

from __future__ import annotations

from rljob_api import constants as c
from rljob_api.spec import RLJob
from rljob_api.status import Role
from rljob_kube.manifests.metadata import OwnerReference


def owner_reference(job: RLJob) -> OwnerReference:
    """Make the owner reference of a child.

    The garbage collector deletes children with the job, even while no operator runs.
    """
    return {
        "apiVersion": c.API_VERSION,
        "kind": c.KIND,
        "name": job.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def machine_index(machine: str) -> int:
    """Return the number at the end of a machine's name."""
    digits = machine.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0


def job_selector(name: str) -> str:
    """Return the label selector of all pods of a job."""
    return f"{c.LABEL_JOB}={name}"


def selector_labels(name: str, role: Role) -> dict[str, str]:
    """Return the labels that select the pods of a role."""
    return {c.LABEL_JOB: name, c.LABEL_ROLE: role.value.lower()}


def selector_text(name: str, role: Role) -> str:
    """Return these labels as a selector string for the scale subresource."""
    return ",".join(f"{key}={value}" for key, value in selector_labels(name, role).items())


def account(name: str) -> str:
    """Name the coordinator's ServiceAccount, Role and RoleBinding."""
    return f"{name}-{c.ROLE_COORDINATOR}"


def auth_secret(job: RLJob) -> str:
    """Name the job's Secret."""
    return c.auth_secret_of(job.name, job.metadata.uid)


def coordinator_address(job: RLJob) -> str:
    """Return the address under which workers find the coordinator."""
    return f"{c.coordinator_service(job.name)}.{job.namespace}.svc"
