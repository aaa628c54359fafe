"""In shared memory: programs that ask a machine's engines for a fault, and one that fills the machine's shared memory.

They run in a pod of the job. What they write there is a file beside those of the job, which `REMOVE` takes away.
"""

from __future__ import annotations

from hack.chaos.in_pods.failing_engines import DIES, REFUSED

from .in_pod import TEXT

FILLED = "chaos-filled"
"""File that fills a machine's shared memory."""
LEFT = 64 << 10
"""Bytes that it leaves, beyond those that the relay still needs. The KV of two responses of a switch takes more."""

REFUSE = f"""{TEXT}
(pathlib.Path(sys.argv[1]) / "{REFUSED}").write_text(sys.argv[2])
print(json.dumps({{"at": time.time(), "pids": [os.getpid()]}}))
"""
"""Lets engines of a size not start."""

REMOVE = f"""{TEXT}
(pathlib.Path(sys.argv[1]) / sys.argv[2]).unlink(missing_ok=True)
print(json.dumps({{"at": time.time(), "pids": [os.getpid()]}}))
"""
"""Takes such a file away, also where it is not there."""

DIES_IN = f"""{TEXT}
asked, end = pathlib.Path(sys.argv[1]) / "{DIES}", time.time() + float(sys.argv[3])
asked.write_text(sys.argv[2])
print("waits for a switch", flush=True)
while asked.exists() and time.time() < end:
    time.sleep(0.005)
at, died = time.time(), True
try:
    asked.unlink()
    died = False
except FileNotFoundError:  # the process that died has removed it
    pass
print(json.dumps({{"at": at, "pids": [os.getpid()] if died else []}}))
"""
"""Lets the first replica of a machine die that gets to a step of a switch, and waits for that."""

FILL = f"""{TEXT}
shared, machine, left = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
path, end = shared / "{FILLED}", time.time() + float(sys.argv[4])
def needed():
    slots = []
    for one in shared.glob(f"rljob-*/{{machine}}/slot-*"):
        try:
            slots.append(one.stat())
        except FileNotFoundError:  # the relay has just replaced it
            pass
    most = max((one.st_size for one in slots), default=0)
    return max(0, 2 * most - sum(512 * one.st_blocks for one in slots))
def fill():
    weights, system = needed(), os.statvfs(shared)
    more = (system.f_bavail * system.f_frsize - weights - left) // 4096 * 4096
    # A relay that changes its slots meanwhile must not lose what it needs.
    if more <= 0 or needed() != weights:
        return
    try:
        os.posix_fallocate(held, os.fstat(held).st_size, more)
    except OSError:  # KV has taken the memory meanwhile
        pass
held, tries = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), 0
while not os.fstat(held).st_size and tries < 20:
    fill()
    tries += 1
    time.sleep(0.05)
filled = os.fstat(held).st_size > 0
if not filled:
    path.unlink()
print(json.dumps({{"at": time.time(), "pids": [os.getpid()] if filled else []}}), flush=True)
if filled and continues_alone():
    while path.exists() and time.time() < end:
        fill()
        time.sleep(0.05)
    path.unlink(missing_ok=True)
"""
"""Fills the shared memory of a machine but for what its relay needs and some bytes, and again when files go there. It
ends by itself after some seconds, or when its file is removed."""
