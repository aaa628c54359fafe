"""A pod's user has a number but no name: what asks for one must find it in the environment."""

import subprocess
import sys

import pytest

from rljob_runtime.pod.ray_node import environment

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
