"""With GitRestore each episode has a working copy of its own, and nothing of another episode is in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rljob_env.agents.checkout import open_checkout
from rljob_env.config import BadConfig
from rljob_runtime.protocols.environments import FailedPart
from tests.support.envs.agents import agent
from tests.support.envs.site import open_site

EDIT = """
    import subprocess
    def git(*words):
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()
    name = task["episode"]
    seen = {"folder": os.getcwd(), "status": git("status", "--porcelain"), "text": open("main.py").read()}
    seen |= {"commit": git("rev-parse", "HEAD"), "branches": git("branch", "--list", "e*")}
    seen |= {"code": os.environ["RLJOB_CODE"]}
    open("main.py", "a").write(f"# {name}\\n")
    open("new.txt", "w").write(name)
    git("checkout", "-q", "-b", f"e{name}")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", name)
    with open(f"{os.environ['RLJOB_CODE']}/seen-{name}.json", "w") as file:
        json.dump(seen, file)
"""


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkout with a commit, an edit that is in no commit, and a file that git does not track."""
    folder = tmp_path / "repo"
    (folder / "inner").mkdir(parents=True)
    (folder / "main.py").write_text("print(1)\n")
    (folder / "inner/data.txt").write_text("7")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    (folder / "inner/data.txt").write_text("8")
    (folder / "untracked.txt").write_text("")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


async def test_concurrent_and_later_episodes_see_no_edit_of_another(tmp_path: Path, repository: Path) -> None:
    before, commit = contents(repository), git(repository, "rev-parse", "HEAD")
    command = agent(tmp_path, EDIT)
    async with open_site() as site, site.stack:
        harness = site.agent(tmp_path, command[0], str(tmp_path / "agent.py"), reset="GitRestore", checkout="repo")
        await site.run(harness)
        for pair in ((0, 1), (2, 3)):
            for episode in [await site.put(index) for index in pair]:
                report = await site.environments.reported(episode)
                assert report.failed is None
                assert "ended with 0" in report.detail, report.detail
    seen = [json.loads((tmp_path / f"seen-0.{index}.0.json").read_text()) for index in range(4)]
    assert len({one.pop("folder") for one in seen}) == 4
    clean = {"status": "", "text": "print(1)\n", "commit": commit, "branches": "", "code": str(tmp_path)}
    assert seen == [clean] * 4
    assert contents(repository) == before, "the checkout itself stays as it is"


async def test_a_copy_has_the_commit_of_the_runners_start_and_is_removed(tmp_path: Path, repository: Path) -> None:
    program = """
        with open(os.environ["RLJOB_CODE"] + "/../seen.json", "w") as file:
            json.dump([os.getcwd(), os.listdir(), open("data.txt").read()], file)
    """
    command = agent(tmp_path, program)
    async with open_site() as site, site.stack:
        harness = site.agent(repository / "inner", command[0], str(tmp_path / "agent.py"), reset="GitRestore")
        git(repository, "commit", "-qam", "second")
        await site.report_of(harness)
    folder, names, text = json.loads((repository / "seen.json").read_text())
    assert (Path(folder).name, names, text) == ("inner", ["data.txt"], "7")
    assert not Path(folder).exists()


async def test_the_reward_function_works_in_the_copy_of_the_agent(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "rewards.py").write_text(
        "def right(record, messages, answer):\n    return float('fixed' in open('main.py').read())\n"
    )
    command = agent(tmp_path, "open('main.py', 'w').write('fixed')")
    async with open_site() as site, site.stack:
        options = {"reset": "GitRestore", "checkout": "repo", "reward": "rewards.py:right"}
        harness = site.agent(tmp_path, command[0], str(tmp_path / "agent.py"), **options)
        assert (await site.report_of(harness)).reward == 1.0


@pytest.mark.parametrize("entry", ["", "."])
async def test_a_function_works_in_a_copy_whose_modules_hide_none_of_its_own(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    # Both are the runner's folder, and would be the copy in the agent's process.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([entry, *filter(os.path.isabs, sys.path)]))
    (tmp_path / "lib").mkdir()
    (tmp_path / "beside.py").write_text("REWARD = 0.5\n")
    (tmp_path / "lib/solver.py").write_text(
        "import json, os\nimport beside\ndef solve(task):\n    return beside.REWARD * os.path.exists('json.py')\n"
    )
    (repository / "json.py").write_text("raise ImportError('of the checkout')\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "second")
    async with open_site() as site, site.stack:
        harness = site.agent(tmp_path, function="lib/solver.py:solve", reset="GitRestore", checkout="repo")
        report = await site.report_of(harness)
        assert (report.reward, report.detail) == (0.5, "the agent ended with 0")


async def test_an_agent_that_removes_its_copy_is_scored_all_the_same(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "rewards.py").write_text(
        "import os\ndef right(record, messages, answer):\n    return float(len(os.listdir()))\n"
    )
    command = agent(tmp_path, "import shutil; shutil.rmtree(os.environ['HOME'] + '/checkout')")
    async with open_site() as site, site.stack:
        harness = site.agent(
            repository / "inner",
            command[0],
            str(tmp_path / "agent.py"),
            reset="GitRestore",
            reward=f"{tmp_path}/rewards.py:right",
        )
        report = await site.report_of(harness)
        assert (report.reward, report.failed) == (0.0, None)


async def test_a_copy_that_cannot_be_made_is_a_failure_of_ours(tmp_path: Path, repository: Path) -> None:
    async with open_site() as site, site.stack:
        harness = site.agent(tmp_path, *agent(tmp_path, "result(1)"), reset="GitRestore", checkout="repo")
        os.rename(repository / ".git", tmp_path / "gone")
        report = await site.report_of(harness)
        assert (report.reward, report.failed) == (None, FailedPart.ENVIRONMENT)
        assert "no working copy: git" in report.detail


def test_a_shallow_checkout_is_copied(tmp_path: Path, repository: Path) -> None:
    git(repository, "commit", "-qam", "second")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repository}", "shallow")
    found = open_checkout(tmp_path / "shallow")
    assert found.shallow.decode().strip() == found.commit == git(repository, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        ("true", "is none: fatal: not a git repository"),
        ("git init -q .", "a folder of a git checkout with a commit would be right"),
        ("rm -r ../plain", "is none"),
    ],
)
def test_a_folder_without_a_commit_is_refused_at_the_start(tmp_path: Path, make: str, text: str) -> None:
    (plain := tmp_path / "plain").mkdir()
    subprocess.run(["sh", "-c", make], cwd=plain, check=True)
    with pytest.raises(BadConfig, match=text) as refused:
        open_checkout(plain)
    assert str(plain) in str(refused.value)


def test_a_folder_that_is_in_no_commit_is_refused_at_the_start(repository: Path) -> None:
    (repository / "later").mkdir()
    with pytest.raises(BadConfig, match="later"):
        open_checkout(repository / "later")


def test_a_runner_whose_checkout_is_none_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("key")
    (temporary := tmp_path / "tmp").mkdir()
    environment = {"name": "own", "kind": "Agent", "command": ["x"], "reset": "GitRestore", "checkout": "absent"}
    given = {"url": "http://127.0.0.1:9", "keyFile": "key", "environment": environment}
    (tmp_path / "config.json").write_text(json.dumps(given))
    command = [sys.executable, "-m", "rljob_env", str(tmp_path / "config.json")]
    variables = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "environment.checkout" in done.stderr) == (2, True), done.stderr
    assert list(temporary.iterdir()) == []


def test_a_machine_without_git_is_told_so(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadConfig, match="GitRestore needs git"):
        open_checkout(repository)
