"""Pod environment: the identity of this pod, as the operator and the downward API set it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rljob_api import constants as c


class NotAPod(Exception):
    """The environment lacks a variable or has a wrong one; the message names it."""


@dataclass(frozen=True)
class Identity:
    """Identity of one pod of one job."""

    job: str
    namespace: str
    uid: str
    machine: str
    incarnation: int
    pod: str
    pod_ip: str
    coordinator: str
    """Name of the coordinator's Service."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Identity:
        """Read the identity from the environment. Raises `NotAPod` with every missing variable."""
        names = (
            c.ENV_NAME,
            c.ENV_NAMESPACE,
            c.ENV_UID,
            c.ENV_MACHINE,
            c.ENV_INCARNATION,
            c.ENV_POD_NAME,
            c.ENV_POD_IP,
            c.ENV_COORDINATOR_ADDRESS,
        )
        missing = [name for name in names if not environment.get(name)]
        if missing:
            raise NotAPod(f"this command is for pods of the operator; the environment lacks {', '.join(missing)}")
        name, namespace, uid, machine, incarnation, pod, pod_ip, coordinator = (environment[name] for name in names)
        if not incarnation.isdigit():
            raise NotAPod(f"{c.ENV_INCARNATION} is {incarnation!r}; a number would be right")
        return cls(name, namespace, uid, machine, int(incarnation), pod, pod_ip, coordinator)

    @property
    def resource(self) -> str:
        """Custom Ray resource that pins actors to this pod."""
        return f"{self.machine}.{self.incarnation}"


RAY_TOKEN = Path(c.AUTH_DIR) / c.AUTH_RAY_TOKEN
RELAY_KEY = Path(c.AUTH_DIR) / c.AUTH_RELAY_KEY
