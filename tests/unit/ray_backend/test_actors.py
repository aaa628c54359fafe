"""The actor's process: who stands back for whom."""

from __future__ import annotations

import json
import subprocess
import sys

STANDS_BACK = """
import json, os, subprocess, threading
from rljob_runtime.ray_backend.actors import lower_priority

def niceness():
    return [os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir("/proc/self/task")]

ended = threading.Event()
threading.Thread(target=ended.wait, daemon=True).start()
found = [niceness()]
for asked in (7, 0):
    lower_priority(asked)
    found.append(niceness() + [int(subprocess.check_output("nice"))])
ended.set()
print(json.dumps(found))
"""


def test_an_actor_and_its_children_keep_a_low_priority() -> None:
    told = subprocess.run([sys.executable, "-c", STANDS_BACK], check=True, capture_output=True, text=True).stdout
    before, stood_back, asked_for_none = json.loads(told)
    own = before[0]
    assert len(before) > 1
    assert before == [own] * len(before)
    # Who has stood back already stays where it is.
    assert stood_back == asked_for_none == [max(own, 7)] * len(stood_back)
    assert len(stood_back) > len(before)
