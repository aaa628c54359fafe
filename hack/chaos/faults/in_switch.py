"""In a switch: waits for a moment of a machine's next layout switch, and damages its KV.

A switch takes less time than a command from outside needs to arrive.
"""

from __future__ import annotations

from .in_pod import FOUND, TEXT

KV_HEADER = """
def kv_end(path):
    try:
        with path.open("rb") as file:
            header = file.read(16)
    except OSError:  # it is removed
        return None
    return int.from_bytes(header[8:], "little") if header[:8] == b"RLJKV001" else None
"""
"""How a program finds the end of the data in a file of KV; None if the file is not complete."""

SWITCH_SECONDS = 60.0
"""Limit of the wait for a machine to switch."""

IN_SWITCH = (
    FOUND
    + KV_HEADER
    + """
shared, seconds, number = sys.argv[4], float(sys.argv[5]), int(sys.argv[6])
def files():
    return set(pathlib.Path(shared).glob(f"rljob-*/{machine}-kv/*.kv"))
def is_ours(command):
    return "ray::" in command or "rljob" in command
def readers(paths):
    names = {str(path) for path in paths}
    ours = [one for one in pathlib.Path("/proc").glob("[0-9]*") if is_ours(text(one / "cmdline"))]
    held = {int(one.name): text(one / "maps").splitlines() for one in ours}
    return [pid for pid, maps in held.items() if any(" rw-p " in one and one.split()[-1] in names for one in maps)]
old, end, hit = files(), time.time() + seconds, []
print("waits for a switch", flush=True)
while not hit and time.time() < end:
    fresh = files() - old
    if what == "reading":
        hit = readers(fresh) if fresh else []
    elif any(what == "writing" or kv_end(path) is not None for path in fresh):
        hit = found
    time.sleep(0.005)
for pid in hit[:1]:
    os.kill(pid, number)
print(json.dumps({"at": time.time(), "pids": hit[:1]}))
"""
)
"""Runs in a pod of the job: waits for a moment of the machine's next switch, and signals one of its actors then.

`writing`: an engine has begun to write a file of KV. `loading`: a file is complete, and the new engines start or load
their weights. `reading`: a new engine has mapped a file."""

DAMAGED_SECONDS = 20.0
"""How long the KV of a machine is damaged."""

DAMAGE_KV = (
    TEXT
    + KV_HEADER
    + """
machine, shared, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
inverted = bytes(range(255, -1, -1))
def complete():
    ends = {path: kv_end(path) for path in pathlib.Path(shared).glob(f"rljob-*/{machine}-kv/*.kv")}
    return {path: end for path, end in ends.items() if end is not None}
def damage(path, end):
    try:
        with path.open("r+b") as file:
            file.seek(4096)
            data = file.read(end - 4096)
            file.seek(4096)
            file.write(data.translate(inverted))
    except OSError:  # it is removed
        pass
# What was there before may be in use: its checksums may have been read.
done = set(complete())
print(json.dumps({"at": time.time(), "pids": [os.getpid()]}), flush=True)
if continues_alone():
    end = time.time() + seconds
    while time.time() < end:
        for path, index in complete().items():
            if path not in done:
                done.add(path)
                damage(path, index)
        time.sleep(0.002)
"""
)
"""Runs in a pod of the job: damages each KV file of the machine when it is complete, before new engines read it."""
