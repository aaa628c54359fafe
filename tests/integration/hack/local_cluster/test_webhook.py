"""The API server, which stands outside the nodes, calls a webhook that runs in a pod, by its Service."""

import base64
import json

import pytest

from hack.local_cluster.control_plane import pki
from tests.support.local_cluster import own_namespace, pod, wait_for

pytestmark = pytest.mark.realnodes

SERVER = """
import http.server, json, ssl

class Webhook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        refused = review["request"]["name"].startswith("bad")
        response = {"uid": review["request"]["uid"], "allowed": not refused, "status": {"message": "a bad name"}}
        body = json.dumps({**review, "response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/tls/tls.crt", "/tls/tls.key")
server = http.server.HTTPServer(("", 8443), Webhook)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def kubectl(real_nodes):
    with own_namespace(real_nodes.kubeconfig) as made:
        yield made
        made("delete", "validatingwebhookconfiguration", made.namespace, "--ignore-not-found")


def objects(namespace, folder):
    """Certificate, pod, Service and configuration of the webhook."""
    key, certificate = pki.certificate(folder, "webhook", f"webhook.{namespace}.svc")
    server = pod("webhook", "python", "-c", SERVER, volumes=[{"name": "tls", "secret": {"secretName": "webhook"}}])
    container = server["spec"]["containers"][0]
    container |= {
        "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
        "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1},
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "webhook"},
        "stringData": {"tls.key": key.read_text(), "tls.crt": certificate.read_text()},
    }
    spec = {"selector": {"app": "webhook"}, "ports": [{"port": 443, "targetPort": 8443}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "webhook"}, "spec": spec}
    authority = base64.b64encode((folder / "ca.crt").read_bytes()).decode()
    hook = {
        "name": "names.cluster.test",
        "clientConfig": {"service": {"namespace": namespace, "name": "webhook"}, "caBundle": authority},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 10,
    }
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [hook],
    }
    return [secret, server, service], configuration


def test_a_service_address_works_from_the_api_server(kubectl, tmp_path):
    pki.create(tmp_path, ["127.0.0.1"])
    made, configuration = objects(kubectl.namespace, tmp_path)
    kubectl.apply(*made)
    wait_for("Ready", lambda: kubectl.condition("pod", "webhook", "Ready") == "True")
    kubectl.apply(configuration)

    def refusal():
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bad-one"}}
        return kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(config_map), check=False)

    wait_for("refusal by the webhook", lambda: "denied the request: a bad name" in refusal())
    kubectl("create", "configmap", "good-one")
