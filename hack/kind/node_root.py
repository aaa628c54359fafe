"""The files of a kind node: Debian's, kind's own from its Go module, and the programs built here.

kind publishes node images on a registry. Its module has what it puts into them: the base files, and a Dockerfile whose
first stage says which services run. Both are taken from there, so that they fit the version of kind.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

from hack.local_cluster.programs import go, recipe
from hack.local_cluster.settings import ClusterError

from . import capabilities, components
from .shell import Run, unpacked, which

FILES = Path(__file__).with_name("files")
SUITE = "bookworm"
"""Its systemd accepts cgroup v1; later ones refuse it."""
PACKAGES = (
    *("systemd", "dbus", "conntrack", "iptables", "nftables", "iproute2", "ethtool", "util-linux", "mount", "kmod"),
    *("libseccomp2", "pigz", "fuse-overlayfs", "e2fsprogs", "bash", "ca-certificates", "curl", "jq", "procps", "socat"),
    # For hack/local_cluster/nodes/oci_runtime.py, which mounts the host's files. python3-minimal has no json.
    "python3",
)


def make(root: Path, release: recipe.Release, binaries: Path, run: Run) -> None:
    """Fill ``root``, an absent folder. Needs root on Linux. Raises ClusterError."""
    base = kind_module() / "images/base"
    _debian(root, run)
    _kind_files(base / "files", root)
    for command in run_lines((base / "Dockerfile").read_text()):
        run(["chroot", root, "sh", "-c", command], None, None)
    _programs(root, binaries)
    images = components.names(binaries, release.version)
    _containerd(root, binaries, images["pause"])
    components.write(images, binaries, root, root / "kind/images")
    _own_files(root)
    (root / "kind/version").write_text(f"v{release.version}\n")
    if capabilities.lacking():
        _without_limits(root)
    for rubbish in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / rubbish, ignore_errors=True)


def kind_module() -> Path:
    """Return the folder of kind's sources, as its pinned module has them."""
    command = [go.command(print), "mod", "download", "-json", "sigs.k8s.io/kind"]
    done = subprocess.run(command, cwd=recipe.KIND.folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"kind's module: {done.stderr.strip() or done.stdout.strip()}")
    return Path(json.loads(done.stdout)["Dir"])


def run_lines(dockerfile: str) -> list[str]:
    """Return the commands of the first stage.

    It installs packages by a `clean-install` that has nothing to do here.
    """
    stage = re.split(r"^FROM .*$", dockerfile, flags=re.MULTILINE)[1]
    lines = [line for line in stage.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    commands = re.findall(r"^RUN (.*)$", joined, re.MULTILINE)
    if not commands:
        raise ClusterError("the Dockerfile of kind's base image has no commands in its first stage")
    return [command.replace("clean-install", "true") for command in commands]


def _debian(root: Path, run: Run) -> None:
    script = which("debootstrap")
    environment = {}
    if script is None:
        folder = unpacked("debootstrap", run)
        script = str(folder / "usr/sbin/debootstrap")
        environment["DEBOOTSTRAP_DIR"] = str(folder / "usr/share/debootstrap")
    run([script, "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, root], None, environment)


def _kind_files(files: Path, root: Path) -> None:
    for source in sorted(path for path in files.rglob("*") if path.is_file()):
        _install(source, source.relative_to(files), root)


def _install(source: Path, place: Path, root: Path) -> None:
    """Copy a file; whatever its own mode is, programs may be executed, and nothing else."""
    target = root / place
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if "bin" in place.parts else 0o644)


def _programs(root: Path, binaries: Path) -> None:
    places = {
        "usr/local/bin": ("containerd", "containerd-shim-runc-v2", "ctr", "crictl"),
        "usr/local/sbin": ("runc",),
        "usr/bin": ("kubelet", "kubeadm", "kubectl"),
        "opt/cni/bin": tuple(recipe.CNI.programs),
    }
    for folder, programs in places.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for program in programs:
            shutil.copy(binaries / program, root / folder)


def _containerd(root: Path, binaries: Path, pause: str) -> None:
    """Configure containerd as kind's Dockerfile does in its last stage, with the sandbox image that kubeadm knows."""
    done = subprocess.run([str(binaries / "ctr"), "oci", "spec"], capture_output=True, text=True, check=True)
    specification = json.loads(done.stdout)
    specification["process"].pop("rlimits", None)
    hooks = specification.setdefault("hooks", {}).setdefault("createContainer", [])
    hooks.append({"path": "/kind/bin/mount-product-files.sh"})
    folder = root / "etc/containerd"
    (folder / "cri-base.json").write_text(json.dumps(specification))
    _substitute(folder / "config.toml", r"sandbox_image = .*", f'sandbox_image = "{pause}"')


def _own_files(root: Path) -> None:
    places = {
        "usr/local/bin": ("node-routes", "import-images"),
        "etc/systemd/system": ("node-routes.service",),
        "etc/systemd/system/containerd.service.d": ("import-images.conf",),
        "kind/manifests": ("default-cni.yaml", "default-storage.yaml"),
    }
    for folder, names in places.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            _install(FILES / name, Path(folder) / name, root)
    wanted = root / "etc/systemd/system/multi-user.target.wants"
    (wanted / "node-routes.service").symlink_to("/etc/systemd/system/node-routes.service")


def _without_limits(root: Path) -> None:
    """Where the capability is lacking, no service can raise a limit or lower its out-of-memory score."""
    units = root / "etc/systemd/system"
    for unit in (units / "containerd.service", units / "kubelet.service", *units.glob("kubelet.service.d/*")):
        _substitute(unit, r"^(Limit|OOMScore).*\n", "", at_least=0)
    _substitute(root / "etc/containerd/config.toml", r"(restrict_oom_score_adj = )false", r"\1true")
    for service in ("systemd-journald", "dbus"):
        folder = units / f"{service}.service.d"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "limits.conf").write_text("[Service]\nOOMScoreAdjust=\nLimitNOFILE=\n")


def _substitute(path: Path, pattern: str, new: str, at_least: int = 1) -> None:
    text, count = re.subn(pattern, new, path.read_text(), flags=re.MULTILINE)
    if count < at_least:
        raise ClusterError(f"{path} has nothing like {pattern}")
    path.write_text(text)
