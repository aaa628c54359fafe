"""Where the host's files go among a container's mounts."""

from __future__ import annotations

from hack.local_cluster.nodes.oci_runtime import with_host_mounts


def order(pods: list[str], host: list[str]) -> list[str]:
    spec = {"mounts": [{"destination": path} for path in pods]}
    return [mount["destination"] for mount in with_host_mounts(spec, host)["mounts"]]


def test_a_volume_below_a_host_path_comes_after_it() -> None:
    assert order(["/proc", "/usr/share/data"], ["/usr"]) == ["/usr", "/proc", "/usr/share/data"]


def test_a_checkout_below_a_volume_comes_after_the_volume() -> None:
    mounts = order(["/proc", "/tmp", "/dev/shm"], ["/usr", "/tmp/clone", "/tmp/clone/.venv"])
    assert mounts.index("/tmp") < mounts.index("/tmp/clone") < mounts.index("/tmp/clone/.venv")


def test_a_path_that_only_begins_alike_is_no_parent() -> None:
    assert order(["/tmp"], ["/tmpfiles"]) == ["/tmpfiles", "/tmp"]
