"""The build: what its cache key depends on, how the source is changed, and where packages come from."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hack.cluster import apt, build, recipe
from hack.cluster.recipe import PATCHES
from hack.cluster.settings import ROOT, ClusterError


def test_key_names_version_and_machine_and_changes_with_what_is_built():
    key = recipe.key("package main")
    assert key.startswith(f"1.20.2-{os.uname().machine}-")
    assert key == recipe.key("package main")
    other = [dataclasses.replace(PATCHES[0], new="const syncPeriod = 2 * time.Second"), *PATCHES[1:]]
    assert len({key, recipe.key("package other"), recipe.key("package main", tuple(other)), recipe.key("", ())}) == 4


def test_version_is_stamped_into_both_packages():
    flags = recipe.link_flags("1.20.2")
    assert flags.count("gitVersion=v1.20.2") == 2
    assert flags.count("gitMinor=20") == 2


@pytest.fixture
def builder(tmp_path):
    made = build.Builder(tmp_path)
    for patch in PATCHES:
        file = made.source / patch.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"before\n{patch.old}\nafter\n")
    vendored = made.source / "vendor/github.com/modern-go/reflect2"
    vendored.mkdir(parents=True)
    (vendored / "old.go").touch()
    newer = made.unpacked / "usr/share/gocode/src/github.com/modern-go/reflect2"
    newer.mkdir(parents=True)
    (newer / "new.go").touch()
    return made


def test_overlay_changes_the_patched_lines_and_the_vendored_package_only(builder):
    replaced = json.loads(builder.overlay().read_text())["Replace"]
    vendored = builder.source / "vendor/github.com/modern-go/reflect2"
    assert replaced.pop(str(vendored / "old.go")) == ""
    assert replaced.pop(str(vendored / "new.go")).endswith("reflect2/new.go")
    for patch in PATCHES:
        assert Path(replaced.pop(str(builder.source / patch.file))).read_text() == f"before\n{patch.new}\nafter\n"
        assert patch.old in (builder.source / patch.file).read_text(), "the source stays as it is"
    assert replaced == {}


@pytest.mark.parametrize("text", ["nothing", f"{PATCHES[0].old}\n{PATCHES[0].old}"])
def test_a_patch_that_does_not_fit_stops_the_build(builder, text):
    (builder.source / PATCHES[0].file).write_text(text)
    with pytest.raises(ClusterError, match="status_manager"):
        builder.overlay()


def test_a_failing_step_shows_the_end_of_its_log(builder):
    with pytest.raises(ClusterError, match=r"failed with 3(.|\n)*the reason"):
        builder.execute(["sh", "-c", "echo the reason >&2; exit 3"])


def test_an_interrupted_build_is_not_taken_for_a_finished_one(monkeypatch, tmp_path):
    monkeypatch.setenv("RLJOB_CACHE", str(tmp_path))
    ran = []

    def interrupted(builder):
        ran.append("first")
        builder.bin.mkdir(parents=True)
        (builder.bin / "kubelet").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(build.Builder, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build.binaries()
    monkeypatch.setattr(build.Builder, "run", lambda builder: ran.append("second"))
    assert build.binaries() == build.cache() / "bin"
    build.binaries()
    assert ran == ["first", "second"]


CONTEND = """
import sys, time
sys.path.append(sys.argv[1])
from hack.cluster import build
def run(builder):
    print("built", flush=True)
    time.sleep(1)
build.Builder.run = run
build.binaries()
"""


def test_of_two_builds_at_once_one_waits_and_then_has_nothing_to_do(tmp_path):
    env = {**os.environ, "RLJOB_CACHE": str(tmp_path)}
    start = [sys.executable, "-c", CONTEND, str(ROOT)]
    both = [subprocess.Popen(start, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    output = "".join(p.communicate(timeout=60)[0] for p in both)
    assert output.count("built") == 1
    assert [p.returncode for p in both] == [0, 0]


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
    assert "Types: deb deb-src\nURIs: http://mirror.test/debian\nSuites: bookworm\nComponents: main\n" in text


def test_private_apt_touches_nothing_outside_its_folder(monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(apt, "_uris", lambda: URIS)
    monkeypatch.setattr(Path, "exists", lambda path: path.name.endswith(".gpg"))
    apt.PrivateApt(tmp_path, "bookworm", lambda *args: ran.append(args[0])).update()
    (command,) = ran
    for option in ("Dir::State::lists", "Dir::Cache", "Dir::Etc::sourceparts"):
        assert any(word.startswith(f"-o{option}={tmp_path}") for word in command)
    assert "-oDir::Etc::sourcelist=/dev/null" in command


def test_other_systems_are_told_what_to_use(monkeypatch, tmp_path):
    monkeypatch.setattr(apt, "_uris", lambda: "")
    with pytest.raises(ClusterError, match="kind"):
        apt.PrivateApt(tmp_path, "bookworm", lambda *args: None).update()


def test_without_root_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="apt-get install no-such-package"):
        apt.ensure_commands({"no-such-command-here": "no-such-package", "sh": "dash"}, print)
    apt.ensure_commands({"sh": "dash"}, print)
