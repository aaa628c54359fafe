"""A whole job on one machine, without Kubernetes: a local Ray, and the operator's policies played in-process."""

from rljob_runtime.local.folder import FolderRefused
from rljob_runtime.local.own_ray import RayFailed
from rljob_runtime.local.run import run

__all__ = ["FolderRefused", "RayFailed", "run"]
