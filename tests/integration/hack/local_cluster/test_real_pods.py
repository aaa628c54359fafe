"""What a pod gets from a real node: its variables, its probes, its account, and an end that leaves no process."""

import uuid

import pytest

from tests.support.local_cluster import own_namespace, pod, traces, wait_for

pytestmark = pytest.mark.realnodes

POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
HANGS = """
import http.server, time
started = time.monotonic()
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        time.sleep(0 if time.monotonic() < started + 4 else 3600)
        super().do_GET()
http.server.HTTPServer(("", 8080), Handler).serve_forever()
"""
"""A server that answers for four seconds."""


@pytest.fixture(scope="module")
def kubectl(real_nodes):
    with own_namespace(real_nodes.kubeconfig) as made:
        yield made


def test_environment_and_exit_code(kubectl):
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
    assert kubectl("logs", "env").split() == ["from-map", "from-secret", f"http://{status['podIP']}/env"]


def test_a_missing_secret_is_waited_for(kubectl):
    env = [{"name": "B", "valueFrom": {"secretKeyRef": {"name": "later", "key": "B"}}}]
    kubectl.apply(pod("waits", "sh", "-c", "echo got $B", container={"env": env}))

    def waiting():
        states = kubectl.get("pod", "waits")["status"].get("containerStatuses", [])
        return states and states[0]["state"].get("waiting", {}).get("reason") == "CreateContainerConfigError"

    wait_for("the reason", waiting)
    kubectl("create", "secret", "generic", "later", "--from-literal=B=it")
    wait_for("end", lambda: kubectl.phase("waits") == "Succeeded")
    assert kubectl("logs", "waits") == "got it\n"


def test_readiness_and_liveness(kubectl):
    """Ready once it serves; started again when it stops serving."""
    probe = {"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 1, "failureThreshold": 2}
    container = {"readinessProbe": probe, "livenessProbe": probe}
    kubectl.apply(pod("web", "python", "-c", HANGS, container=container, restartPolicy="Always"))
    wait_for("Ready", lambda: kubectl.condition("pod", "web", "Ready") == "True")

    def restarted():
        return kubectl.get("pod", "web")["status"]["containerStatuses"][0]["restartCount"] > 0

    wait_for("restart of a server that hangs", restarted)
    wait_for("Ready again", lambda: kubectl.condition("pod", "web", "Ready") == "True")


def test_deletion_gives_grace_and_leaves_no_process(kubectl):
    """A program that ends on SIGTERM ends its pod; one that ignores it, or left its session, is killed."""
    seconds = str(10**8 + uuid.uuid4().int % 10**8)
    goes = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
    stays = f"trap : TERM; (setsid sleep {seconds} &); while :; do sleep 0.1; done"
    kubectl.apply(
        pod("goes", "sh", "-c", goes, terminationGracePeriodSeconds=3600),
        pod("stays", "sh", "-c", stays, terminationGracePeriodSeconds=3600),
    )
    wait_for("its orphan", lambda: traces(f"sleep {seconds}"))
    wait_for("start", lambda: kubectl.phase("goes") == "Running")
    kubectl("delete", "pod", "goes", "--timeout=60s")
    kubectl("delete", "pod", "stays", "--grace-period=2", "--timeout=60s")
    assert not traces(f"sleep {seconds}")


READ = """
import asyncio, sys
from rljob_kube.client import KubeClient
from rljob_kube.connection import in_cluster
from rljob_kube.credentials import Credentials
from rljob_kube.resources import Resource

async def read():
    async with KubeClient(Credentials(in_cluster())).opened() as kube:
        found = await kube.get(Resource("ConfigMap", "", "v1", "configmaps"), sys.argv[1], "read")
        print(found["data"]["A"])

asyncio.run(read())
"""


def test_a_service_account_reads_what_its_role_allows(kubectl):
    """By the token in the pod and the Service `kubernetes`."""
    kubectl("create", "role", "reader", "--verb=get", "--resource=configmaps")
    kubectl("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={kubectl.namespace}:default")
    kubectl("create", "configmap", "read", "--from-literal=A=x")
    # The authorizer learns of roles and bindings a moment after they are written.
    account = f"--as=system:serviceaccount:{kubectl.namespace}:default"
    asked = ("auth", "can-i", "get", "configmaps", account)
    wait_for("the account's right", lambda: kubectl(*asked, check=False).startswith("yes"))
    kubectl.apply(pod("asks", "python", "-c", READ, kubectl.namespace))
    wait_for("end", lambda: kubectl.phase("asks") in ("Succeeded", "Failed"), 120)
    assert kubectl("logs", "asks") == "x\n"
