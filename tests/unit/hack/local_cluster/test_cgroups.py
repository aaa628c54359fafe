"""Control groups of real nodes on v1, hybrid and v2 machines, on folders that stand in for the kernel's."""

from pathlib import Path

import pytest

from hack.local_cluster.nodes import cgroups
from hack.local_cluster.nodes.cgroups import Hierarchy
from hack.local_cluster.settings import ClusterError

V1 = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/x,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
50 31 0:32 / /mnt/memory rw - cgroup cgroup rw,memory
"""
V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
V2_CONTROLLERS = "cpuset cpu io memory hugetlb pids rdma misc"


def test_hybrid_machines_are_v1():
    trees = cgroups.hierarchies(V1, "")
    assert [(t.mount.name, t.version, t.controllers) for t in trees] == [
        ("cpu,cpuacct", 1, ("cpu", "cpuacct")),
        ("memory", 1, ("memory",)),
        ("pids", 1, ("pids",)),
        ("systemd", 1, ("name=systemd",)),
    ]


def test_v2_machines_have_one_tree():
    assert cgroups.hierarchies(V2, V2_CONTROLLERS) == [
        Hierarchy(Path("/sys/fs/cgroup"), 2, ("cpuset", "cpu", "io", "memory", "hugetlb", "pids"))
    ]


@pytest.mark.parametrize(
    ("mountinfo", "controllers", "lacking"),
    [(V2, "cpu pids", "memory"), (V2, "", "cpu, memory, pids"), ("", "", "cpu, memory, pids")],
)
def test_missing_controllers_are_named(mountinfo, controllers, lacking):
    with pytest.raises(ClusterError, match=lacking):
        cgroups.hierarchies(mountinfo, controllers)


def test_v1_mounts_show_every_tree_under_all_its_names():
    commands = [" ".join(c) for c in cgroups.mount_commands(cgroups.hierarchies(V1))]
    assert commands[0] == "mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup"
    assert "mount -t cgroup -o cpu,cpuacct cgroup /sys/fs/cgroup/cpu,cpuacct" in commands
    assert "ln -sfn cpu,cpuacct /sys/fs/cgroup/cpuacct" in commands
    assert "mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd" in commands
    assert not any("unified" in c for c in commands)


def test_v2_mounts_one_tree():
    assert cgroups.mount_commands(cgroups.hierarchies(V2, V2_CONTROLLERS)) == [
        ["mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup"]
    ]


def test_v2_delegates_at_every_level_above_the_node_and_not_in_it(tmp_path):
    tree = Hierarchy(tmp_path, 2, ("cpu", "memory"))
    cgroups.create([tree], "rljob246/node-1")
    cgroups.create([tree], "rljob246/node-2")
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory"
    assert (tmp_path / "rljob246/cgroup.subtree_control").read_text() == "+cpu +memory"
    # A group that delegates may hold no process, and the node's init is still to enter this one.
    assert not (tmp_path / "rljob246/node-1/cgroup.subtree_control").exists()


def test_v2_settle_empties_the_nodes_root_before_it_delegates(tmp_path):
    tree = Hierarchy(tmp_path, 2, ("cpu", "memory"))
    (tmp_path / "cgroup.procs").write_text("1\n")
    cgroups.settle([tree], tmp_path)
    assert (tmp_path / "init/cgroup.procs").read_text() == "1"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory"


def test_v2_asks_only_for_what_the_children_do_not_have(tmp_path):
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory")
    cgroups.delegate(tmp_path, ("cpu", "memory"))
    assert (tmp_path / "cgroup.subtree_control").read_text() == "cpu memory"
    cgroups.delegate(tmp_path, ("cpu", "pids"))
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+pids"


def test_v2_refusal_names_group_and_controllers(tmp_path):
    with pytest.raises(ClusterError, match=r"gone/cgroup.subtree_control: cannot delegate cpu, memory"):
        cgroups.delegate(tmp_path / "gone", ("cpu", "memory"))


def test_v1_settles_nothing(tmp_path):
    cgroups.settle([Hierarchy(tmp_path, 1, ("memory",))], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_v1_cpusets_inherit_their_parents_cpus(tmp_path):
    for name, value in (("cpuset.cpus", "0-3"), ("cpuset.mems", "0")):
        (tmp_path / name).write_text(value)
    cgroups.create([Hierarchy(tmp_path, 1, ("cpuset",))], "rljob246/node-1")
    node = tmp_path / "rljob246/node-1"
    assert (node / "cpuset.cpus").read_text() == "0-3"
    assert (node / "cpuset.mems").read_text() == "0"
    assert (node / "cgroup.clone_children").read_text() == "1"


def test_remove_takes_nested_groups_and_does_not_mind_twice(tmp_path):
    tree = Hierarchy(tmp_path, 1, ("memory",))
    (tmp_path / "rljob246/node-1/kubepods/burstable/pod1").mkdir(parents=True)
    cgroups.remove([tree], "rljob246")
    cgroups.remove([tree], "rljob246")
    assert list(tmp_path.iterdir()) == []


def test_remove_gives_up_on_a_busy_group(tmp_path):
    (tmp_path / "rljob246").mkdir()
    (tmp_path / "rljob246/busy").write_text("")
    with pytest.raises(ClusterError, match="still busy"):
        cgroups.remove([Hierarchy(tmp_path, 1, ("memory",))], "rljob246", timeout=0.1)


def test_pids_are_found_at_any_depth(tmp_path):
    for folder, text in (("a", "1\n2\n"), ("a/b", "3\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "cgroup.procs").write_text(text)
    assert cgroups.pids([Hierarchy(tmp_path, 2, ("cpu",))], "a") == {1, 2, 3}
