#!/usr/bin/env python3
"""OCI runtime: runc, with the host's files mounted read-only into containers of images with the marker file.

containerd calls this in runc's place. Images without the marker, such as one built from the Dockerfile and loaded
with `cluster load-image`, run untouched. Standalone: it is copied to the node and started without site packages.
"""

import json
import os
import sys
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))


def with_host_mounts(spec: dict[str, Any], sources: list[str], below: str = "") -> dict[str, Any]:
    """Return the OCI spec with a read-only bind mount for every source.

    Each is before the pod's mounts below it and after those above it: neither a checkout under /tmp nor a volume below
    a host path is hidden by the other. ``below``: the folder of the node that has the host's files.
    """
    mounts = list(spec.get("mounts", []))
    for source in reversed(sources):
        own = {
            "destination": source,
            "source": f"{below}{source}",
            "type": "bind",
            "options": ["rbind", "ro", "nosuid"],
        }
        above = [n for n, mount in enumerate(mounts) if source.startswith(mount["destination"].rstrip("/") + "/")]
        mounts.insert(above[-1] + 1 if above else 0, own)
    return {**spec, "mounts": mounts}


def main(argv: list[str]) -> None:
    with open(os.path.join(HERE, "oci-runtime.json")) as handle:
        settings = json.load(handle)
    if "create" in argv and "--bundle" in argv:
        bundle = argv[argv.index("--bundle") + 1]
        path = os.path.join(bundle, "config.json")
        with open(path) as handle:
            spec = json.load(handle)
        root = os.path.join(bundle, spec["root"]["path"])
        if os.path.exists(os.path.join(root, settings["marker"])):
            with open(path, "w") as handle:
                json.dump(with_host_mounts(spec, settings["mounts"], settings.get("below", "")), handle)
    os.execv(settings["runc"], [settings["runc"], *argv])


if __name__ == "__main__":
    main(sys.argv[1:])
