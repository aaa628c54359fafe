"""A private API server for tests: etcd and kube-apiserver on loopback, no nodes, no controllers.

    with api_server(tmp_path) as server:
        os.environ["KUBECONFIG"] = str(server.kubeconfig)

Nothing collects garbage, schedules or deletes namespaces here. The two processes die with the thread that started
them, and their files with the context.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hack.local_cluster import process
from hack.local_cluster.control_plane import pki
from hack.local_cluster.control_plane.control_plane import ControlPlane, missing, start_apiserver, start_controllers
from hack.local_cluster.kube import Api
from hack.local_cluster.nodes import volumes
from hack.local_cluster.process import Daemons
from hack.local_cluster.programs import build, recipe
from hack.local_cluster.settings import ClusterError

_ATTEMPTS = 3


@dataclass(frozen=True)
class Server:
    folder: Path
    url: str
    kubeconfig: Path
    """An admin's (group system:masters)."""
    node_grace_seconds: int = 8
    """A node that is silent for so long is not Ready, where there are controllers."""

    def client(self) -> Api:
        return Api(self.kubeconfig)

    def kubeconfig_of(self, user: pki.User) -> Path:
        """Return the kubeconfig of one of the users the server was started with."""
        return self.folder / f"{user.file}.kubeconfig"

    @property
    def log(self) -> Path:
        """The API server's log."""
        return self.folder / "logs/kube-apiserver.log"


@contextlib.contextmanager
def api_server(
    parent: Path | None = None,
    users: Sequence[pki.User] = (),
    *,
    controllers: bool = False,
    kubernetes: str | None = None,
    node_grace_seconds: int = 8,
    features: Mapping[str, bool] | None = None,
    apis: Sequence[str] = (),
) -> Iterator[Server]:
    """Yield a running API server below ``parent`` (default: the temporary folder); gone when the context ends.

    ``users`` get a token and a kubeconfig each and no rights but RBAC's. ``controllers`` adds the controller manager
    and the scheduler: garbage collection, namespace deletion, service accounts.
    ``node_grace_seconds``: a node that is silent for so long is not Ready. ``kubernetes`` is the minor, by
    default ``$KUBERNETES`` or the newest. ``features`` are feature gates of all programs, ``apis`` are versions of API
    groups, as ``scheduling.k8s.io/v1beta1``, that are served though they are off by default. Raises ClusterError when
    it does not start.
    """
    programs = _programs(controllers, kubernetes)
    folder = Path(tempfile.mkdtemp(prefix="rljob-api-", dir=parent))
    daemons = Daemons(folder / "pids", folder / "logs", tied=True)
    try:
        plane = _start(programs, folder, daemons, users, features or {}, tuple(apis))
        server = Server(folder, plane.server, folder / "admin.kubeconfig", node_grace_seconds)
        if controllers:
            (folder / "recycler.json").write_text(json.dumps(volumes.recycler()))
            start_controllers(replace(plane, node_grace_seconds=node_grace_seconds), daemons, server.client())
        yield server
    finally:
        daemons.stop(daemons.names(), grace=0)  # nothing of it is kept, and a server waits for its watchers
        shutil.rmtree(folder, ignore_errors=True)


def given() -> Path | None:
    """Return ``$KUBEBUILDER_ASSETS``, the folder of etcd and kube-apiserver that `setup-envtest` makes; None without.

    It has no controllers, and one version: it serves neither where those are requested nor where a minor is. Raises
    ClusterError for a folder without the two.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        return None
    if lacking := missing(Path(assets), recipe.SERVER):
        raise ClusterError(f"KUBEBUILDER_ASSETS={assets} has no {' and no '.join(lacking)}")
    return Path(assets).absolute()


def to_build() -> tuple[str, ...]:
    """Return what is built for a server without controllers: nothing where a usable folder is given."""
    with contextlib.suppress(ClusterError):  # the server's start says it
        if given() is not None:
            return ()
    return recipe.SERVER


def _programs(controllers: bool, kubernetes: str | None) -> Path:
    """Return the folder of the programs that a server runs: the given one, else the built one."""
    if not controllers and kubernetes is None and (assets := given()) is not None:
        return assets
    return build.binaries(recipe.CONTROL_PLANE if controllers else recipe.SERVER, recipe.release(kubernetes))


def _start(
    programs: Path,
    folder: Path,
    daemons: Daemons,
    users: Sequence[pki.User],
    features: Mapping[str, bool],
    apis: tuple[str, ...],
) -> ControlPlane:
    """Another process may take a port between its choice and its use: then others are chosen."""
    pki.create(folder / "pki", ["127.0.0.1", "10.96.0.1"])
    for attempt in range(1, _ATTEMPTS + 1):
        port, etcd, peer = process.free_ports(3)
        plane = ControlPlane(
            programs,
            folder,
            "127.0.0.1",
            port,
            etcd,
            peer,
            "10.96.0.0/16",
            proxied=False,
            features=features,
            apis=apis,
        )
        everyone = [pki.ADMIN, pki.CONTROLLER_MANAGER, pki.SCHEDULER, *users]
        pki.write_users(plane.pki, folder, plane.server, everyone)
        try:
            start_apiserver(plane, daemons)
            return plane
        except ClusterError as error:
            daemons.stop(daemons.names())
            if attempt == _ATTEMPTS or "address already in use" not in str(error):
                raise
            shutil.rmtree(folder / "etcd", ignore_errors=True)
    raise AssertionError("unreachable")
