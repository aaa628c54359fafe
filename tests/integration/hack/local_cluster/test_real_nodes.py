"""Real nodes: kubelet, images, Services, volumes, power and cables.

The tests share one cluster and build on each other's objects only through fixtures; the last one takes a cluster of
its own down and looks at what is left.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hack.local_cluster import settings
from hack.local_cluster.nodes import images
from hack.local_cluster.programs.build import binaries
from tests.support.local_cluster import own_namespace, pod, traces, wait_for

pytestmark = pytest.mark.realnodes

SERVE = ["python", "-m", "http.server", "8080", "--directory", "/tmp"]
DOOMED = str(10**8 + os.getpid())
"""Seconds that a pod sleeps, by which its process is found."""
FETCH = "import urllib.request as r; print(r.urlopen('http://{}', timeout=5).status)"


@pytest.fixture(scope="module")
def kubectl(real_nodes):
    with own_namespace(real_nodes.kubeconfig) as made:
        yield made


def mounts(**volumes):
    """Pod and container fields for volumes: name → (path, source)."""
    return {
        "volumes": [{"name": name, **source} for name, (_, source) in volumes.items()],
        "container": {"volumeMounts": [{"name": name, "mountPath": path} for name, (path, _) in volumes.items()]},
    }


TMP = {"tmp": ("/tmp", {"emptyDir": {}})}
SHM = {"shm": ("/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}})}


@pytest.fixture(scope="module")
def web(kubectl):
    """A server on node-1 and its Service."""
    server = pod("web", *SERVE, nodeName="node-1", **mounts(**TMP))
    server["spec"]["containers"][0]["readinessProbe"] = {"httpGet": {"port": 8080}, "periodSeconds": 1}
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}
    headless = {**service, "metadata": {"name": "peers"}, "spec": {**spec, "clusterIP": "None"}}
    kubectl.apply(server, service, headless)
    wait_for("Ready", lambda: kubectl.condition("pod", "web", "Ready") == "True")
    return kubectl


def test_a_confined_pod_runs_the_hosts_python(kubectl):
    """torch is imported, shared memory is written, memory is limited, the root file system is not writable."""
    script = """
import os, pathlib, torch
pathlib.Path('/dev/shm/x').write_bytes(bytes(64 << 20))
limit = [p for p in ('/sys/fs/cgroup/memory/memory.limit_in_bytes', '/sys/fs/cgroup/memory.max') if os.path.exists(p)]
print(os.getuid(), int(torch.ones(3).sum()), pathlib.Path(limit[0]).read_text().strip())
for path in ('/x', '/usr/x', os.path.dirname(torch.__file__) + '/x'):
    try:
        open(path, 'w')
        print('wrote', path)
    except OSError:
        pass
"""
    made = pod("torch", "python", "-c", script, **mounts(**TMP, **SHM))
    made["spec"]["containers"][0]["resources"] = {"limits": {"memory": "1Gi"}, "requests": {"cpu": "10m"}}
    kubectl.apply(made)
    wait_for("end", lambda: kubectl.phase("torch") in ("Succeeded", "Failed"), 120)
    assert kubectl("logs", "torch") == f"65532 3 {1 << 30}\n"


def test_too_much_memory_is_killed(kubectl):
    made = pod("eats", "python", "-c", "bytearray(256 << 20)", **mounts(**TMP))
    made["spec"]["containers"][0]["resources"] = {"limits": {"memory": "64Mi"}}
    kubectl.apply(made)
    wait_for("end", lambda: kubectl.phase("eats") == "Failed")
    (status,) = kubectl.get("pod", "eats")["status"]["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 137


@pytest.mark.parametrize("node", ["node-1", "node-2"])
@pytest.mark.parametrize("name", ["web", "peers:8080", "web.{namespace}.svc.cluster.local"])
def test_services_and_names_from_the_same_and_another_node(web, node, name):
    client = f"client-{node}"
    web.apply(pod(client, "sleep", "600", nodeName=node, **mounts(**TMP)))
    wait_for("start", lambda: web.phase(client) == "Running")
    url = name.format(namespace=web.namespace)
    # A ready pod becomes the Service's on every node a moment later.
    ask = ("exec", client, "--", "python", "-c", FETCH.format(url))
    wait_for("an answer", lambda: web(*ask, check=False).startswith("200\n"))


def test_a_claim_binds_and_is_shared_across_nodes(kubectl):
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "shared"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    volume = {"data": ("/data", {"persistentVolumeClaim": {"claimName": "shared"}})}
    kubectl.apply(claim, pod("writes", "sh", "-c", "echo hello > /data/f", nodeName="node-1", **mounts(**volume)))
    wait_for("end", lambda: kubectl.phase("writes") == "Succeeded")
    kubectl.apply(pod("reads", "cat", "/data/f", nodeName="node-2", **mounts(**volume)))
    wait_for("end", lambda: kubectl.phase("reads") == "Succeeded")
    assert kubectl("logs", "reads") == "hello\n"


def test_a_loaded_image_runs_untouched(real_nodes, kubectl, tmp_path):
    """An image without the marker gets nothing of the host: there is no shell in it to start."""
    layer = images.Layer()
    layer.file("wait", (binaries() / "pause").read_bytes(), 0o755)
    archive = tmp_path / "own.tar"
    images.write_archive(archive, {"rljob.local/own:test": {"Entrypoint": ["/wait"]}}, layer.bytes())
    assert "node-3" in real_nodes.run("load-image", str(archive))
    made = pod("own")
    made["spec"]["containers"][0] |= {"image": "rljob.local/own:test", "command": []}
    kubectl.apply(made)
    wait_for("start", lambda: kubectl.phase("own") == "Running")
    assert "no such file" in kubectl("exec", "own", "--", "/usr/bin/true", check=False)


def test_the_switch_keeps_its_address_when_machines_join(real_nodes):
    """One that takes the address of a port is not found for some seconds when that port is unplugged."""
    network = settings.load(real_nodes.name).network
    links = Path("/sys/class/net").glob(f"{network.bridge}*")
    address = {link.name: (link / "address").read_text().strip() for link in links}
    assert address.pop(network.bridge) == network.mac
    assert len(address) == 3
    assert network.mac not in address.values()


@pytest.fixture(scope="module")
def trouble(real_nodes, web):
    """node-3 without power, node-1 behind a cut cable, and both noticed: one wait for two tests."""
    address = web.get("pod", "web")["status"]["podIP"]
    web.apply(pod("doomed", "sleep", DOOMED, nodeName="node-3"))
    wait_for("start", lambda: web.phase("doomed") == "Running")
    wait_for("its process", lambda: traces(f"sleep {DOOMED}"))
    real_nodes.node("kill", 3)
    assert not traces(f"sleep {DOOMED}")
    real_nodes.node("cut", 1)
    web.apply(pod("tries", "python", "-c", FETCH.format(f"{address}:8080"), nodeName="node-2"))
    for node in ("node-1", "node-3"):
        wait_for("NotReady", lambda node=node: web.condition("node", node, "Ready") == "Unknown")
    return web


def test_a_cut_cable_is_noticed_and_joined_again(real_nodes, trouble):
    """Behind a cut cable no client reaches the pods; with the cable the node is Ready immediately."""
    wait_for("a client's failure", lambda: trouble.phase("tries") == "Failed")
    real_nodes.node("join", 1)
    wait_for("Ready", lambda: trouble.condition("node", "node-1", "Ready") == "True")


def test_a_dead_node_loses_its_pods_and_comes_back(real_nodes, trouble):
    """Its pods are evicted, stay Terminating until it returns, and new ones work on it then."""
    wait_for("eviction", lambda: "deletionTimestamp" in trouble.get("pod", "doomed")["metadata"])
    real_nodes.node("up", 3)
    wait_for("the evicted pod's end", lambda: trouble.phase("doomed") == "")
    trouble.apply(pod("after", "true", nodeName="node-3"))
    wait_for("end", lambda: trouble.phase("after") == "Succeeded")


def test_down_leaves_nothing(real_nodes):
    """A second cluster beside the first: its own network, and nothing of it afterwards."""
    name = f"pytest-{os.getpid()}-second"
    handle = type(real_nodes)(name)
    handle.run("up", "--nodes", "1")
    state = settings.state_dir(name)
    network = settings.load(name).network
    identity = json.loads((state / "cluster.json").read_text())["identity"]
    marks = (str(state), network.bridge, f"10.{network.octet}.", identity)
    assert {line.split()[0] for line in traces(*marks)} == {"link", "route", "group", "process"}
    assert network.octet != settings.load(real_nodes.name).network.octet
    handle.run("down")
    assert traces(*marks) == set()
    assert not state.exists()
    handle.run("down")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_an_up_that_ends_early_leaves_nothing(real_nodes, number):
    """By itself, or what it left when it was killed is `down`'s to take."""
    name = f"pytest-{os.getpid()}-early"
    command = [sys.executable, str(settings.ROOT / "hack/local_cluster/cluster"), "--name", name, "up", "--nodes", "1"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    state = settings.state_dir(name)
    wait_for("an API server", lambda: (state / "pids/kube-apiserver.json").exists())
    network = settings.load(name).network
    marks = (str(state), network.bridge, f"10.{network.octet}.")
    assert traces(*marks)
    child.send_signal(number)
    output = child.communicate(timeout=60)[0]
    if number == signal.SIGTERM:
        assert child.returncode == 130
        assert "was taken down" in output
    else:
        type(real_nodes)(name).run("down")
    assert not state.exists()
    assert traces(*marks) == set()
