"""The private API server, as the tests of other packages use it."""

import subprocess

import pytest

from hack.local_cluster import kube
from hack.local_cluster.control_plane import pki
from hack.local_cluster.private.apiserver import api_server, given
from hack.local_cluster.process import Daemons
from hack.local_cluster.programs import recipe

pytestmark = pytest.mark.cluster

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def widget_crd() -> dict:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.cluster.test"},
        "spec": {
            "group": "cluster.test",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [version],
        },
    }


def test_serves_custom_resources_and_server_side_apply(apiserver):
    api = apiserver.client()
    api.call("POST", CRD, widget_crd())
    path = "/apis/cluster.test/v1/namespaces/default/widgets"
    kube.wait("the new resource", 30, lambda: api.get(path)["items"] == [])
    widget = {"apiVersion": "cluster.test/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 3}}
    api.apply(f"{path}/w", widget)
    assert api.get(f"{path}/w")["spec"] == {"size": 3}
    managers = [m["manager"] for m in api.get(f"{path}/w")["metadata"]["managedFields"]]
    assert managers == ["rljob-cluster"]


def test_refuses_who_has_no_token(apiserver, tmp_path):
    forged = tmp_path / "kubeconfig"
    forged.write_text(apiserver.kubeconfig.read_text().replace('"token": "', '"token": "x'))
    with pytest.raises(kube.ApiError, match="401"):
        kube.Api(forged).get("/api/v1/namespaces")


def test_is_of_the_version_that_the_recipe_names_or_that_of_a_given_folder(apiserver):
    wanted = f"v{recipe.release().version}"
    if (assets := given()) is not None:
        said = subprocess.run([assets / "kube-apiserver", "--version"], capture_output=True, text=True, check=True)
        wanted = said.stdout.split()[-1]
    assert apiserver.client().get("/version")["gitVersion"] == wanted


def test_aggregated_apis_are_told_who_calls_for_a_user(apiserver):
    path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
    kube.wait("what they check", 30, lambda: apiserver.client().find(path) is not None)
    told = apiserver.client().get(path)["data"]
    assert told["requestheader-allowed-names"] == f'["{pki.FRONT_PROXY}"]'
    assert told["requestheader-username-headers"] == '["X-Remote-User"]'
    assert told["requestheader-client-ca-file"] == told["client-ca-file"]


def test_controllers_end_namespaces_and_rbac_limits_users(tmp_path):
    with api_server(tmp_path, [pki.User("no-rights", "no-rights")], controllers=True) as server:
        api = server.client()
        with pytest.raises(kube.ApiError, match="403"):
            kube.Api(server.kubeconfig_of(pki.User("no-rights", "no-rights"))).get("/api/v1/namespaces")
        api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "short"}})
        api.call("DELETE", "/api/v1/namespaces/short")
        kube.wait("the namespace's end", 60, lambda: api.find("/api/v1/namespaces/short") is None)
        daemons = Daemons(server.folder / "pids", server.folder / "logs")
        running = [daemons.get(name) for name in daemons.names()]
        assert [p.alive for p in running] == [True] * 4
    assert not any(p.alive for p in running)
    assert list(tmp_path.iterdir()) == []
