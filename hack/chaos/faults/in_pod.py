"""In a pod: programs that run in a container of the job, find processes there and send them signals.

Each is a text that Python executes. It prints an object: the time of its work, and the processes that it found.
"""

from __future__ import annotations

TEXT = '''
import json, os, pathlib, resource, signal, sys, time
def text(path):
    try:
        return path.read_text(errors="replace")
    except OSError:  # the process has ended
        return ""
def continues_alone():
    """Fork. True in the child, for which kubectl does not wait."""
    if os.fork():
        return False
    os.setsid()
    for stream in range(3):  # kubectl waits while they are open
        os.close(stream)
    return True
'''
"""Begins a program of a pod: its imports, how to read a file of a process, and how to go on after its answer."""

FOUND = (
    TEXT
    + """
part, what, machine = sys.argv[1:4]
found = []
for process in pathlib.Path("/proc").glob("[0-9]*"):
    if text(process / "cmdline").startswith("ray::ActorHost"):
        # A relay writes the weights in shared memory, a replica reads them.
        maps = text(process / "maps").splitlines()
        writes = any("/dev/shm/" in line and f"/{machine}/" in line and " rw-s " in line for line in maps)
        if part == "rank" or (part == "relay") == writes:
            found.append(int(process.name))
"""
)
"""Finds the actors of a kind in a pod of the job."""

ACTOR = (
    FOUND
    + """
if what == "limit" or what == "unlimit":
    for pid in found:
        soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (int(sys.argv[4]) if what == "limit" else hard, hard))
else:
    for pid in found[:1]:
        os.kill(pid, int(what))
print(json.dumps({"at": time.time(), "pids": found}))
"""
)
"""Runs in a pod of the job: signals one of its actors, or limits the size of the files that it writes."""

KILL_ALL = "import json, os, time; print(json.dumps({'at': time.time(), 'pids': [1]}), flush=True); os.kill(-1, 9)"
"""Kills all processes of a pod whose containers share a process namespace: its program is not the first process
there."""

RUNNING = f"""{TEXT}
def running(words):
    found = [int(one.name) for one in pathlib.Path("/proc").glob("[0-9]*") if words in text(one / "cmdline")]
    return [pid for pid in found if pid != os.getpid()]
"""
"""Begins a program that finds other processes of its pod by their command lines, in which words end with NUL."""
