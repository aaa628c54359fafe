"""Persistent volumes: a default StorageClass and a few host folders that every node sees, so ReadWriteMany works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hack.local_cluster.kube import Api
from hack.local_cluster.settings import RUNTIME_IMAGE, Cluster

from . import nodeconfig

COUNT = 8
CLASS = "rljob-host"


def storage_class() -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "Immediate",
    }


def volume(name: str, path: Path, reclaim: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "rljob-cluster"}},
        "spec": {
            "capacity": {"storage": "100Gi"},
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": reclaim,
            "storageClassName": CLASS,
            "hostPath": {"path": str(path), "type": "Directory"},
        },
    }


def recycler() -> dict[str, Any]:
    """Return the pod that empties a released volume, so that the next claim can have it."""
    container = {
        "name": "recycle",
        "image": RUNTIME_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["find", "/scrub", "-mindepth", "1", "-delete"],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "volume", "mountPath": "/scrub"}],
    }
    spec = {
        "restartPolicy": "Never",
        "volumes": [{"name": "volume", "hostPath": {"path": "/set-by-the-controller"}}],
        "containers": [container],
    }
    metadata = {"name": "recycler", "namespace": "kube-system"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def prepare(cluster: Cluster) -> None:
    """Create the folders, open to every user as pods run as any, and the template that the controller manager reads."""
    for index in range(1, COUNT + 1):
        folder = cluster.volumes / f"pv-{index}"
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
    (cluster.state / "recycler.json").write_text(json.dumps(recycler()))


def objects(where: Path, reclaim: str) -> list[dict[str, Any]]:
    """Return the StorageClass and its volumes, whose folders lie in ``where`` on every node."""
    names = [f"pv-{index}" for index in range(1, COUNT + 1)]
    return [storage_class(), *(volume(name, where / name, reclaim) for name in names)]


def publish(api: Api, where: Path = nodeconfig.VOLUMES, reclaim: str = "Recycle") -> None:
    """Create the StorageClass and its volumes; with ``Recycle`` a released one is emptied and offered again."""
    paths = {"StorageClass": "/apis/storage.k8s.io/v1/storageclasses", "PersistentVolume": "/api/v1/persistentvolumes"}
    for item in objects(where, reclaim):
        api.apply(f"{paths[item['kind']]}/{item['metadata']['name']}", item)
