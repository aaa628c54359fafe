"""A whole job on one machine, without Kubernetes: a local Ray, and the operator's policies played in-process."""

from rljob_runtime.local.run import run
from rljob_runtime.local.run_folder import FolderRefused
from rljob_runtime.ray_backend.local_ray import RayFailed

__all__ = ["FolderRefused", "RayFailed", "run"]
