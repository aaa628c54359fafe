"""A pod's user has a number but no name: what asks for one must find it in the environment."""

import os
import subprocess
import sys

import pytest

from rljob_runtime.entrypoints.ray_node import environment

NAMELESS = """
import getpass, pwd
def getpwuid(uid):
    raise KeyError(uid)
pwd.getpwuid = getpwuid
print(getpass.getuser())
"""


@pytest.mark.parametrize(("given", "name"), [({}, "rljob"), ({"LOGNAME": "me", "USER": "me"}, "me")])
def test_every_process_of_a_pod_has_a_user_name(tmp_path, given, name):
    """`given` is what the pod's template sets: it wins."""
    settings = environment(tmp_path / "ray-token", None, given)
    answer = subprocess.run([sys.executable, "-c", NAMELESS], env=settings, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == name
    without = {key: value for key, value in settings.items() if key not in ("USER", "LOGNAME")}
    assert subprocess.run([sys.executable, "-c", NAMELESS], env=without, capture_output=True, check=False).returncode


CONFIG = (
    "import ray; print(ray._config.grpc_client_keepalive_time_ms(), ray._config.grpc_client_keepalive_timeout_ms())"
)


def test_ray_knows_what_it_is_given_against_a_head_that_is_cut_off(tmp_path):
    """Its names are private to Ray: one that is gone with a later release would be passed over in silence."""
    settings = environment(tmp_path / "ray-token", None, os.environ)
    answer = subprocess.run([sys.executable, "-c", CONFIG], env=settings, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["10000", "20000"]
