"""Pods as processes of this machine, under a real control plane."""

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from cluster_kit import Kubectl, pod, traces, wait_for
from hack.cluster import process, settings
from hack.cluster.settings import ROOT

pytestmark = pytest.mark.cluster

SERVER = """
import http.server, os
http.server.HTTPServer((os.environ["POD_IP"], 8080), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


@pytest.fixture
def kubectl(process_cluster):
    made = Kubectl(process_cluster.kubeconfig, f"test-{uuid.uuid4().hex[:8]}")
    made("create", "namespace", made.namespace)
    wait_for("service account", lambda: made("get", "sa", "default", "--ignore-not-found"))
    yield made
    made("delete", "namespace", made.namespace, "--wait=false")


def log(process_cluster, name):
    """What the pod wrote. Process nodes have no `kubectl logs`."""
    state = settings.state_dir(process_cluster.name)
    return "".join(p.read_text() for p in state.glob(f"node-*/pods/*_{name}_*/main.log"))


def test_environment_and_exit_code(process_cluster, kubectl):
    kubectl("create", "configmap", "cm", "--from-literal=A=from-map")
    kubectl("create", "secret", "generic", "s", "--from-literal=B=from-secret")
    env = [
        POD_IP,
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "A"}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "B"}}},
        {"name": "URL", "value": "http://$(POD_IP)/$(NAME)"},
    ]
    kubectl.apply(pod("env", "sh", "-c", "echo $A $B $URL; exit 7", container={"env": env}))
    wait_for("end", lambda: kubectl.phase("env") == "Failed")
    status = kubectl.get("pod", "env")["status"]
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
    assert log(process_cluster, "env").split() == ["from-map", "from-secret", f"http://{status['podIP']}/env"]


def test_a_missing_secret_is_waited_for(process_cluster, kubectl):
    env = [{"name": "B", "valueFrom": {"secretKeyRef": {"name": "later", "key": "B"}}}]
    kubectl.apply(pod("waits", "sh", "-c", "echo got $B", container={"env": env}))

    def waiting():
        states = kubectl.get("pod", "waits")["status"].get("containerStatuses", [])
        return states and states[0]["state"].get("waiting", {}).get("reason") == "CreateContainerConfigError"

    wait_for("the reason", waiting)
    kubectl("create", "secret", "generic", "later", "--from-literal=B=it")
    wait_for("end", lambda: kubectl.phase("waits") == "Succeeded")
    assert log(process_cluster, "waits") == "got it\n"


def test_readiness_and_liveness(process_cluster, kubectl):
    """Ready once it serves; started again when it stops serving."""
    once = f"import os, threading; threading.Timer(3, lambda: os.kill(os.getpid(), 19)).start()\n{SERVER}"
    probe = {"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 1, "failureThreshold": 2}
    container = {"env": [POD_IP], "readinessProbe": probe, "livenessProbe": probe}
    made = pod("web", "python", "-c", once, container=container, restartPolicy="Always")
    kubectl.apply(made)
    wait_for("Ready", lambda: kubectl.condition("pod", "web", "Ready") == "True")

    def restarted():
        return kubectl.get("pod", "web")["status"]["containerStatuses"][0]["restartCount"] > 0

    wait_for("restart of a server that hangs", restarted)
    wait_for("Ready again", lambda: kubectl.condition("pod", "web", "Ready") == "True")


def test_deletion_gives_grace_and_leaves_no_process(process_cluster, kubectl):
    """SIGTERM first; what ignores it, or left the session, is killed."""
    mark = f"7{uuid.uuid4().int % 10**8}"
    script = f"trap 'echo bye' TERM; (setsid sleep {mark} &); echo up; while :; do sleep 0.1; done"
    kubectl.apply(pod("stays", "sh", "-c", script))
    wait_for("start", lambda: "up" in log(process_cluster, "stays"))
    wait_for("its orphan", lambda: traces(f"sleep {mark}"))
    kubectl("delete", "pod", "stays", "--grace-period=2", "--wait=true")
    assert not traces(f"sleep {mark}")


def test_a_service_account_speaks_through_kubeconfig(process_cluster, kubectl):
    kubectl("create", "role", "reader", "--verb=get", "--resource=configmaps")
    kubectl("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={kubectl.namespace}:default")
    kubectl("create", "configmap", "cm", "--from-literal=A=x")
    read = "import kubernetes as k, os; k.config.load_kube_config(); a = k.client.CoreV1Api(); "
    read += f"print(a.read_namespaced_config_map('cm', '{kubectl.namespace}').data['A'])"
    kubectl.apply(pod("asks", "python", "-c", read))
    wait_for("end", lambda: kubectl.phase("asks") in ("Succeeded", "Failed"), 120)
    assert log(process_cluster, "asks") == "x\n"


def test_a_dead_node_is_noticed_and_comes_back(process_cluster, kubectl):
    """Power-off: its processes are gone at once, its pod's object is replaced by the Deployment's."""
    mark = f"7{uuid.uuid4().int % 10**8}"
    kubectl.apply(pod("doomed", "sleep", mark, nodeName="node-3"))
    wait_for("start", lambda: kubectl.phase("doomed") == "Running")
    process_cluster.node("kill", 3)
    assert not traces(f"sleep {mark}")
    wait_for("NotReady", lambda: kubectl.condition("node", "node-3", "Ready") == "Unknown")
    process_cluster.node("up", 3)
    assert kubectl.condition("node", "node-3", "Ready") == "True"


def test_an_interrupted_up_leaves_nothing(process_cluster):
    """The process cluster is asked for only so that the build is done."""
    name = f"interrupted-{os.getpid()}"
    command = [sys.executable, str(ROOT / "hack/cluster/cluster"), "--name", name, "up", "--node", "process"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    state = settings.state_dir(name)
    wait_for("etcd", lambda: (state / "pids/kube-apiserver.json").exists())
    identity = json.loads((state / "cluster.json").read_text())["identity"]
    time.sleep(0.5)
    child.terminate()
    output = child.communicate(timeout=60)[0]
    assert child.returncode == 130
    assert "was taken down" in output
    assert not state.exists()
    assert not traces(str(state))
    assert not process.carrying("RLJOB_CLUSTER_ID", identity)
    assert not Path(f"/proc/{child.pid}").exists()
