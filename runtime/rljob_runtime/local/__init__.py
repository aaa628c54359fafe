"""Local runs: a complete job on one machine without Kubernetes, on a local Ray.

The operator's policies run in the same process.
"""

from rljob_runtime.gateway.kept_process import ProcessFailed
from rljob_runtime.local.blocking import EndedEarly
from rljob_runtime.local.run import run
from rljob_runtime.local.run_folder import FolderRefused
from rljob_runtime.ray_backend.local_ray import RayFailed

__all__ = ["EndedEarly", "FolderRefused", "ProcessFailed", "RayFailed", "run"]
