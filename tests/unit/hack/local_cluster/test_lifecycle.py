"""The command line and the parts of a cluster's life that need no cluster."""

import json
import os
import re
import subprocess
import sys

import pytest

from hack.local_cluster import cli, lifecycle
from hack.local_cluster.control_plane.control_plane import ControlPlane
from hack.local_cluster.nodes import network_policies, nodeconfig, nodes, volumes
from hack.local_cluster.programs import apt, build, recipe
from hack.local_cluster.settings import ROOT, Cluster, ClusterError, Network

NETWORK = Network(240)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("RLJOB_CACHE", str(tmp_path))
    return tmp_path / "rljob"


def test_down_takes_what_a_killed_up_noted_and_does_not_mind_twice(cache):
    Cluster("default", "real", 1, Network(1), "identity", "/venv").save()  # no cluster takes the network 10.1.0.0/16
    assert lifecycle.down("default") is True
    assert lifecycle.down("default") is False
    assert list((cache / "clusters").iterdir()) == []


def test_down_of_what_never_was(cache, capsys):
    assert cli.main(["down"]) == 0
    assert "was not up" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status"], ""),
        (["kubeconfig"], "cluster default is not up"),
        (["env"], "cluster default is not up"),
        (["logs"], "cluster default is not up"),
        (["load-image", "x.tar"], "cluster default is not up"),
        (["node", "kill", "1"], "cluster default is not up"),
        (["node", "kill", "0"], "1 to 9 are possible"),
        (["node", "kill", "1", "--kubernetes", "1.36"], "a node gets its programs by `up`, not by `kill`"),
        (["up", "--nodes", "10"], "1 to 9 are possible"),
        (["up", "--nodes", "0"], "1 to 9 are possible"),
    ],
)
def test_messages(cache, capsys, arguments, message):
    status = cli.main(arguments)
    assert status == (1 if message else 0)
    assert message in capsys.readouterr().err


def test_without_root_the_other_ways_are_named(cache, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cli.main(["up"]) == 1
    error = capsys.readouterr().err
    assert all(way in error for way in ("--kind", "KUBECONFIG", "rljob run"))


def test_a_minor_is_asked_for_by_name(cache, monkeypatch, capsys):
    asked = []

    def up(*arguments):
        asked.append(arguments)
        return Cluster("default", "real", 3, Network(1), "identity", "/venv")

    monkeypatch.setattr(lifecycle, "up", up)
    assert cli.main(["up", "--kubernetes", "1.36"]) == 0
    assert cli.main(["up"]) == 0
    assert asked == [("default", 3, "1.36"), ("default", 3, None)]
    with pytest.raises(SystemExit):
        cli.main(["up", "--kubernetes", "1.20"])
    assert "1.34" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("server", "asked", "found"),
    [("1.37", None, "1.37"), ("1.37", "1.34", "1.34"), ("1.36", "1.36", "1.36"), ("1.35", "1.34", "1.34")],
)
def test_a_node_may_be_older_than_its_api_server(server, asked, found):
    assert recipe.node_release(server, asked).minor == found


@pytest.mark.parametrize(("server", "found"), [("1.37", "1.34"), ("1.35", "1.34"), ("1.34", "1.34")])
def test_the_oldest_kubelet_is_three_minors_older_or_the_oldest_built(monkeypatch, server, found):
    monkeypatch.setenv("KUBERNETES", server)
    assert recipe.oldest_kubelet() == found
    assert recipe.node_release(server, found).minor == found


def test_a_node_is_never_newer_than_its_api_server(monkeypatch):
    with pytest.raises(ClusterError, match=r"--kubernetes 1\.37: below an API server of 1\.36"):
        recipe.node_release("1.36", "1.37")
    monkeypatch.setattr(recipe, "MINORS", ("1.33", *recipe.MINORS))
    monkeypatch.setitem(recipe.KUBERNETES, "1.33", recipe.KUBERNETES["1.34"])
    with pytest.raises(ClusterError, match="up to 3 minors older"):
        recipe.node_release("1.37", "1.33")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((3, "1.37"), ""),
        ((2, "1.37"), "up with 3 real nodes of Kubernetes 1.37, not 2 real nodes of Kubernetes 1.37; first: "),
        ((3, "1.36"), "up with 3 real nodes of Kubernetes 1.37, not 3 real nodes of Kubernetes 1.36; first: "),
    ],
)
def test_up_of_what_is_up_is_nothing_or_refused(cache, monkeypatch, tmp_path, asked, message):
    for module, name in ((nodes, "require"), (lifecycle, "is_up"), (apt, "ensure_commands"), (build, "binaries")):
        monkeypatch.setattr(module, name, lambda *_, **__: tmp_path)
    present = Cluster("default", "real", 3, Network(1), "identity", "/venv", "1.37")
    present.save()
    if message:
        with pytest.raises(ClusterError, match=re.escape(message)):
            lifecycle.up("default", *asked)
    else:
        assert lifecycle.up("default", *asked) == present


def test_interrupt_is_its_own_exit_status(cache, monkeypatch):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(lifecycle, "status", interrupted)
    assert cli.main(["status"]) == 130


def test_the_entry_runs_from_anywhere_without_a_virtual_environment(cache, tmp_path):
    environment = {"PATH": "/usr/bin:/bin", "RLJOB_CACHE": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-S", str(ROOT / "hack/local_cluster/cluster"), "status"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "cluster default: down\n")


def plane(tmp_path, **changes):
    values = {"binaries": tmp_path, "state": tmp_path, "address": "10.240.0.1", "port": 1, "etcd_port": 2}
    return ControlPlane(**{**values, "peer_port": 3, "service_cidr": "10.240.200.0/22", **changes})


def test_nothing_listens_beyond_loopback_and_the_bridge(tmp_path):
    made = plane(tmp_path)
    words = [str(w) for command in (made.etcd(), made.apiserver(), made.controller_manager()) for w in command]
    assert "--bind-address=10.240.0.1" in words
    assert all("127.0.0.1" in w for w in words if w.startswith("--listen"))
    assert "0.0.0.0" not in " ".join(words)
    assert "--authorization-mode=Node,RBAC" in words


def test_an_api_server_without_proxies_publishes_no_endpoints_of_its_own(tmp_path):
    assert "--endpoint-reconciler-type=none" in plane(tmp_path, proxied=False).apiserver()
    assert not any("endpoint-reconciler" in str(w) for w in plane(tmp_path).apiserver())


def test_no_token_is_on_a_command_line(tmp_path):
    commands = [*nodeconfig.daemons(NETWORK, 1).values(), plane(tmp_path).scheduler(), plane(tmp_path).apiserver()]
    assert not any("token=" in str(w) for command in commands for w in command)


def test_kubelets_of_two_nodes_share_nothing(tmp_path):
    one, two = (nodeconfig.files(NETWORK, i, [], "overlayfs", "python") for i in (1, 2))
    assert json.loads(one["kubelet.json"])["address"] == "10.240.0.11"
    subnets = [
        json.loads(f["cni/10-rljob.conflist"])["plugins"][0]["ipam"]["ranges"][0][0]["subnet"] for f in (one, two)
    ]
    assert subnets == ["10.240.1.0/24", "10.240.2.0/24"]
    assert one.keys() == two.keys()


@pytest.mark.parametrize(
    ("filesystem", "expected"), [("ext2/ext3", "overlayfs"), ("xfs", "overlayfs"), ("overlayfs", "native")]
)
def test_snapshotter(filesystem, expected):
    assert nodeconfig.snapshotter(filesystem) == expected
    assert f'snapshotter = "{expected}"' in nodeconfig.containerd(expected)


def test_python_runs_only_for_create():
    script = (
        nodeconfig.oci_runtime("/py").replace(str(nodeconfig.HOME), "/home").replace(str(nodeconfig.BIN), "/bin-of")
    )
    shown = script.replace("exec ", "echo ")
    for words, expected in ((["--root", "r", "create"], "/py -I -S /home"), (["exec", "-p"], "/bin-of/runc exec")):
        out = subprocess.run(["sh", "-c", shown, "sh", *words], capture_output=True, text=True, check=True).stdout
        assert out.startswith(expected)


def test_volumes_serve_many_and_are_emptied_between_claims(tmp_path):
    made = volumes.volume("pv-1", tmp_path, "Recycle")["spec"]
    assert "ReadWriteMany" in made["accessModes"]
    assert made["storageClassName"] == volumes.storage_class()["metadata"]["name"]
    (container,) = volumes.recycler()["spec"]["containers"]
    target = tmp_path / "scrub"
    (target / ".hidden/deep").mkdir(parents=True)
    (target / "file").touch()
    command = [str(target) if word == "/scrub" else word for word in container["command"]]
    subprocess.run(command, check=True)
    assert list(target.iterdir()) == []


def test_the_policies_program_receives_what_it_would_read_itself():
    cluster = Cluster("default", "real", 3, NETWORK, "identity", "/venv", "1.37")
    rules = [" ".join(rule) for rule in network_policies.rules(cluster)]
    assert "--uid-owner 0 -j RETURN" in rules[0], "the kubelet's probes reach every pod"
    assert "ESTABLISHED,RELATED -j RETURN" in rules[1], "a connection is judged once"
    queued = rules[2:]
    assert all(rule.endswith(f"-j NFQUEUE --queue-num {network_policies.QUEUE}") for rule in queued)
    for index in range(1, 10):
        for end in ("-s", "-d"):
            assert sum(f" {end} {NETWORK.pods(index)} " in rule for rule in queued) == 1
    container = network_policies.objects()[-1][1]["spec"]["template"]["spec"]["containers"][0]
    assert f"--nfqueue-id={network_policies.QUEUE}" in container["args"]
