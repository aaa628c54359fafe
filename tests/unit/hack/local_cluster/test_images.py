"""Images without a registry, and the OCI runtime that fills them."""

import gzip
import io
import json
import os
import stat
import sys
import tarfile
from pathlib import Path

import pytest

from hack.local_cluster.nodes import images, oci_runtime
from hack.local_cluster.settings import OPERATOR_IMAGE, RUNTIME_IMAGE, ClusterError


def read_archive(path):
    with tarfile.open(path) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar.getmembers()}


def layer_of(files, manifest):
    digest = manifest["layers"][0]["digest"]
    assert images._digest(files[f"blobs/sha256/{digest[7:]}"]) == digest
    return tarfile.open(fileobj=io.BytesIO(gzip.decompress(files[f"blobs/sha256/{digest[7:]}"])))


@pytest.fixture
def host_image(tmp_path):
    path = tmp_path / "host.tar"
    images.host_image(path, Path("/root/work/.venv"), [Path("/usr"), Path("/root/work")])
    return read_archive(path)


def test_both_images_are_in_one_archive_with_the_dockerfiles_entrypoints(host_image):
    found = {}
    for entry in json.loads(host_image["index.json"])["manifests"]:
        manifest = json.loads(host_image[f"blobs/sha256/{entry['digest'][7:]}"])
        config = json.loads(host_image[f"blobs/sha256/{manifest['config']['digest'][7:]}"])
        found[entry["annotations"]["io.containerd.image.name"]] = config["config"]
        layer = gzip.decompress(host_image[f"blobs/sha256/{manifest['layers'][0]['digest'][7:]}"])
        assert config["rootfs"]["diff_ids"] == [images._digest(layer)]
    assert {name: config["Entrypoint"] for name, config in found.items()} == {
        RUNTIME_IMAGE: ["python", "-m", "rljob_runtime.entrypoints"],
        OPERATOR_IMAGE: ["python", "-m", "rljob_operator"],
    }
    assert all(config["User"] == "65532:65532" for config in found.values())
    assert found[RUNTIME_IMAGE]["Env"][0].startswith("PATH=/root/work/.venv/bin:")


def test_any_user_can_pass_through_to_the_mount_points(host_image):
    entry = json.loads(host_image["index.json"])["manifests"][0]
    manifest = json.loads(host_image[f"blobs/sha256/{entry['digest'][7:]}"])
    with layer_of(host_image, manifest) as layer:
        modes = {m.name: m.mode for m in layer.getmembers() if m.isdir()}
        assert modes["root"] == modes["root/work"] == modes["usr"] == 0o755
        assert modes["tmp"] == 0o1777
        assert images.MARKER in layer.getnames()
        assert b":65532:65532:" in layer.extractfile("etc/passwd").read()


def test_python_homes_follow_every_link(tmp_path):
    real, alias, venv = tmp_path / "python-3.11.7", tmp_path / "python-3.11", tmp_path / "venv"
    for folder in (real / "bin", venv / "bin"):
        folder.mkdir(parents=True)
    (real / "bin/python3.11").touch()
    alias.symlink_to(real)
    (venv / "bin/python3").symlink_to(alias / "bin/python3.11")
    (venv / "bin/python").symlink_to("python3")
    assert images.python_homes(venv / "bin/python") == [alias, real]


def make_venv(tmp_path):
    home, venv = tmp_path / "home", tmp_path / "checkout/.venv"
    for folder in (home / "bin", venv / "bin"):
        folder.mkdir(parents=True)
    (home / "bin/python").touch(0o755)
    (venv / "bin/python").symlink_to(home / "bin/python")
    for file in (venv / "pyvenv.cfg", tmp_path / "checkout/pyproject.toml"):
        file.touch()
    for folder in (home, venv, tmp_path / "checkout"):
        folder.chmod(0o755)
    return home, venv


def test_host_mounts_leave_out_what_lies_in_another(tmp_path):
    home, venv = make_venv(tmp_path)
    assert images.host_mounts(venv, tmp_path / "checkout") == [Path("/usr"), tmp_path / "checkout", home]


def test_host_mounts_refuse_what_pods_could_not_read(tmp_path):
    home, venv = make_venv(tmp_path)
    home.chmod(0o700)
    with pytest.raises(ClusterError, match=r"home is not readable.*65532"):
        images.host_mounts(venv, tmp_path / "checkout")


def test_host_mounts_without_an_environment_say_what_to_do(tmp_path):
    with pytest.raises(ClusterError, match="make setup"):
        images.host_mounts(tmp_path)


def bundle_of(tmp_path, *, marked):
    """A bundle, and a stand-in for runc that prints its arguments."""
    (tmp_path / "bundle/rootfs").mkdir(parents=True)
    if marked:
        (tmp_path / "bundle/rootfs" / images.MARKER).touch()
    spec = {"root": {"path": "rootfs"}, "mounts": [{"destination": "/proc"}], "process": {"args": ["x"]}}
    (tmp_path / "bundle/config.json").write_text(json.dumps(spec))
    home = tmp_path / "etc"
    home.mkdir()
    (home / "oci_runtime.py").write_text(Path(oci_runtime.__file__).read_text())
    (home / "runc").write_text('#!/bin/sh\necho "$@"\n')
    (home / "runc").chmod(0o755)
    settings = {"runc": str(home / "runc"), "marker": images.MARKER, "mounts": ["/usr", "/src"]}
    (home / "oci-runtime.json").write_text(json.dumps(settings))
    return home / "oci_runtime.py", tmp_path / "bundle"


@pytest.mark.parametrize(("marked", "expected"), [(True, ["/usr", "/src", "/proc"]), (False, ["/proc"])])
def test_only_marked_images_get_the_hosts_files(tmp_path, marked, expected):
    script, bundle = bundle_of(tmp_path, marked=marked)
    out = os.popen(f"{sys.executable} -I -S {script} --root /r create --bundle {bundle} id").read()
    assert out.split() == ["--root", "/r", "create", "--bundle", str(bundle), "id"]
    mounts = json.loads((bundle / "config.json").read_text())["mounts"]
    assert [m["destination"] for m in mounts] == expected
    assert all("ro" in m["options"] for m in mounts if m["destination"] != "/proc")


def test_other_commands_touch_no_bundle(tmp_path):
    script, bundle = bundle_of(tmp_path, marked=True)
    before = (bundle / "config.json").read_text()
    os.popen(f"{sys.executable} -I -S {script} delete --bundle {bundle} id").read()
    assert (bundle / "config.json").read_text() == before


def test_pause_archive_holds_an_executable(tmp_path):
    binary = tmp_path / "pause"
    binary.write_bytes(b"\x7fELF")
    images.pause(tmp_path / "pause.tar", binary)
    files = read_archive(tmp_path / "pause.tar")
    entry = json.loads(files["index.json"])["manifests"][0]
    with layer_of(files, json.loads(files[f"blobs/sha256/{entry['digest'][7:]}"])) as layer:
        assert stat.S_IMODE(layer.getmember("pause").mode) == 0o755
