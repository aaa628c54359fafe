"""Names and labels of what a job owns."""

from __future__ import annotations

from typing import Any

from rljob_api import constants as c
from rljob_api.spec import RLJob
from rljob_api.status import Role


def owner_reference(job: RLJob) -> dict[str, Any]:
    """Everything goes with the job: the garbage collector does the cleaning, also while no operator runs."""
    return {
        "apiVersion": c.API_VERSION,
        "kind": c.KIND,
        "name": job.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def machine_index(machine: str) -> int:
    """The number at the end of a machine's name."""
    digits = machine.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0


def job_selector(name: str) -> str:
    """Label selector of all pods of a job."""
    return f"{c.LABEL_JOB}={name}"


def selector_labels(name: str, role: Role) -> dict[str, str]:
    """Labels that select the pods of a role."""
    return {c.LABEL_JOB: name, c.LABEL_ROLE: role.value.lower()}


def selector_text(name: str, role: Role) -> str:
    """The same as a selector string, as the scale subresource wants it."""
    return ",".join(f"{key}={value}" for key, value in selector_labels(name, role).items())


def account(name: str) -> str:
    """ServiceAccount, Role and RoleBinding of the coordinator."""
    return f"{name}-{c.ROLE_COORDINATOR}"


def auth_secret(job: RLJob) -> str:
    """The job's Secret. Part of the uid is in the name: the operator may create Secrets but not read them, so the name
    alone must tell that an existing one is this job's and not left from an earlier job of the same name."""
    return f"{c.auth_secret(job.name)}-{job.metadata.uid[:8]}"


def coordinator_address(job: RLJob) -> str:
    """Where workers find the coordinator."""
    return f"{c.coordinator_service(job.name)}.{job.namespace}.svc"
