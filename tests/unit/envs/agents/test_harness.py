"""Any program is an agent: it has the task, the model and a scratch folder, and nothing of it outlives its episode."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from rljob_env.runner import RunnerSettings
from rljob_runtime.protocols.environments import FailedPart, HarnessLimit
from rljob_runtime.protocols.errors import PeerGone
from tests.support.envs.agents import agent
from tests.support.envs.processes import gone
from tests.support.envs.site import MESSAGES, RECORD, call, open_site, scripted

FUNCTION = """
import json, os, urllib.request

def solve(task):
    assert task["messages"][0]["content"] == task["record"]["prompt"]
    return {"reward": 0.25, "steps": 3}

async def later(task):
    return 0.75

def wrong(task):
    return "good"
"""


async def test_an_agent_asks_the_model_and_writes_its_reward(tmp_path: Path) -> None:
    command = agent(
        tmp_path,
        """
        answer = ask(task["messages"])
        os.makedirs("seen", exist_ok=True)
        with open("seen/environ.json", "w") as file:
            json.dump({"task": task, "environ": dict(os.environ)}, file)
        result({"reward": float(int(answer) == task["record"]["answer"]), "metrics": {"steps": 1}})
        """,
    )
    async with open_site() as site, site.stack:
        harness = site.agent(tmp_path, *command, variables={"SEARCH_URL": "http://search"})
        report = await site.report_of(harness)
        assert (report.reward, report.failed, report.metrics["steps"]) == (1.0, None, 1)
        assert report.metrics["agent_seconds"] > 0
        seen = json.loads((tmp_path / "seen/environ.json").read_text())
        assert seen["task"] == {
            "episode": "0.0.0",
            "attempt": 1,
            "record": RECORD,
            "messages": MESSAGES,
            "model": "policy",
        }
        environ = seen["environ"]
        given = {"PATH", "HOME", "TMPDIR", "LANG", "OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"}
        given |= {"RLJOB_TASK", "RLJOB_RESULT", "RLJOB_CODE", "SEARCH_URL"}
        of_python_itself = {"LC_CTYPE"}
        assert environ.keys() - of_python_itself <= given
        assert environ["OPENAI_BASE_URL"] == f"{site.url}/v1"
        assert not Path(environ["HOME"]).exists()
        assert harness.stats.ended == 1


@pytest.mark.parametrize(
    ("left", "why"),
    [
        ('os.mkfifo(os.environ["RLJOB_RESULT"])', "no regular file"),
        ('os.symlink("/etc/passwd", os.environ["RLJOB_RESULT"])', "cannot be read"),
        ('os.mkdir(os.environ["RLJOB_RESULT"])', "RLJOB_RESULT"),
    ],
    ids=["a pipe", "a link", "a folder"],
)
async def test_what_is_no_file_is_no_result_and_stops_no_runner(tmp_path: Path, left: str, why: str) -> None:
    command = agent(tmp_path, f'ask(task["messages"]); {left}')
    async with open_site() as site, site.stack:
        report = await site.report_of(site.agent(tmp_path, *command))
        assert (report.reward, report.failed) == (None, FailedPart.ENVIRONMENT)
        assert why in report.detail


async def test_an_agent_knows_the_trace_of_its_attempt(tmp_path: Path) -> None:
    program = 'trace = os.environ.get("TRACEPARENT"); result({"reward": {"00-1-2-01": 1.0, None: 0.5}.get(trace, 0.0)})'
    command = agent(tmp_path, program)
    async with open_site() as site, site.stack:
        await site.run(site.agent(tmp_path, *command))
        traced, other = [await site.put(index, traceparent=one) for index, one in enumerate(("00-1-2-01", None))]
        assert (await site.environments.reported(traced)).reward == 1.0
        assert (await site.environments.reported(other)).reward == 0.5


@pytest.mark.parametrize(
    ("program", "reward", "detail"),
    [
        ("result({'reward': 1}); sys.exit('crashed after a good answer')", 1.0, "crashed after a good answer"),
        ("sys.exit(3)", None, "the agent ended with 3"),
        ("raise ValueError('wrong')", None, "ValueError: wrong"),
        ("result('null')", None, "the agent ended with 0"),
        ("result('0.5')", 0.5, "the agent ended with 0"),
    ],
)
async def test_the_end_of_an_agent_is_its_own_doing(
    tmp_path: Path, program: str, reward: float | None, detail: str
) -> None:
    async with open_site() as site, site.stack:
        report = await site.report_of(site.agent(tmp_path, *agent(tmp_path, program)))
        assert (report.reward, report.failed, report.limit) == (reward, None, None)
        assert detail in report.detail


@pytest.mark.parametrize(
    ("program", "part", "detail"),
    [
        ("result('{\"rew')", FailedPart.ENVIRONMENT, "RLJOB_RESULT"),
        ("result({'reward': 'good'})", FailedPart.ENVIRONMENT, "a finite number would be right"),
        ("result('NaN')", FailedPart.ENVIRONMENT, "a finite number would be right"),
        ("result('1' * 70000)", FailedPart.ENVIRONMENT, "longer than"),
        ("result({'failed': 'runner'})", FailedPart.ENVIRONMENT, "'environment' or 'tool server' would be right"),
        ("result({'failed': 'tool server', 'detail': 'no index'})", FailedPart.TOOL_SERVER, "no index"),
    ],
)
async def test_a_result_that_is_none_is_a_failure_of_ours(
    tmp_path: Path, program: str, part: FailedPart, detail: str
) -> None:
    async with open_site() as site, site.stack:
        report = await site.report_of(site.agent(tmp_path, *agent(tmp_path, program)))
        assert (report.reward, report.failed) == (None, part)
        assert detail in report.detail


async def test_a_command_that_does_not_exist_is_a_failure_of_ours(tmp_path: Path) -> None:
    async with open_site() as site, site.stack:
        report = await site.report_of(site.agent(tmp_path, "no-such-agent"))
        assert report.failed is FailedPart.ENVIRONMENT
        assert "'no-such-agent' cannot be started" in report.detail


async def test_an_agent_that_hangs_ends_at_its_deadline_with_all_that_it_started(tmp_path: Path) -> None:
    command = agent(
        tmp_path,
        """
        import signal, subprocess, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open("pids.json", "w") as file:
            json.dump([os.getpid(), child.pid, os.environ["HOME"]], file)
        result('{"rew')
        time.sleep(600)
        """,
    )
    async with open_site() as site, site.stack:
        harness = site.agent(tmp_path, *command)
        report = await site.report_of(harness, seconds=6.0)
        assert (report.reward, report.failed, harness.stats.killed) == (None, None, 1)
        assert report.limit is HarnessLimit.SECONDS
        assert report.detail.startswith("the deadline ended the agent")
        *pids, home = json.loads((tmp_path / "pids.json").read_text())
        await gone(pids)
        assert not Path(home).exists()


@pytest.mark.parametrize(("program", "failed"), [("sys.exit(3)", FailedPart.ENVIRONMENT), ("result('null')", None)])
async def test_an_agents_failure_while_the_gateway_is_away_is_ours(
    tmp_path: Path, program: str, failed: FailedPart | None
) -> None:
    async with open_site() as site, site.stack:
        harness = site.agent(tmp_path, *agent(tmp_path, program))
        await site.run(harness, RunnerSettings(1, heartbeat_seconds=60.0))
        while not site.environments.heartbeats:  # noqa: ASYNC110, the runner's states have no event
            await asyncio.sleep(0.005)
        episode = await site.put()
        while not site.environments.leased:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        site.environments.faults["heartbeat"].append(PeerGone("restarts"))
        assert (await site.environments.reported(episode)).failed == failed


async def test_the_folder_of_an_agent_is_deleted_by_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a million files must not silence the runner's heartbeats."""
    threads = []
    delete = tempfile.TemporaryDirectory.cleanup

    def cleanup(folder: Any) -> None:
        threads.append(threading.current_thread())
        delete(folder)

    monkeypatch.setattr(tempfile.TemporaryDirectory, "cleanup", cleanup)
    async with open_site() as site, site.stack:
        report = await site.report_of(site.agent(tmp_path, *agent(tmp_path, "result(1.0)")))
        assert report.reward == 1.0
    assert threads
    assert threading.main_thread() not in threads


async def test_what_an_agent_leaves_behind_is_ended_with_its_episode(tmp_path: Path) -> None:
    command = agent(
        tmp_path,
        """
        import subprocess
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open("pids.json", "w") as file:
            json.dump([child.pid], file)
        """,
    )
    async with open_site() as site, site.stack:
        await site.report_of(site.agent(tmp_path, *command))
        await gone(json.loads((tmp_path / "pids.json").read_text()))


@pytest.mark.parametrize(
    ("function", "reward", "failed"),
    [
        ("solver.py:solve", 0.25, None),
        ("solver.py:later", 0.75, None),
        ("solver.py:wrong", None, FailedPart.ENVIRONMENT),
        ("solver.py:absent", None, FailedPart.ENVIRONMENT),
    ],
)
async def test_a_function_is_an_agent(tmp_path: Path, function: str, reward: Any, failed: Any) -> None:
    (tmp_path / "solver.py").write_text(FUNCTION)
    async with open_site() as site, site.stack:
        report = await site.report_of(site.agent(tmp_path, function=function))
        assert (report.reward, report.failed) == (reward, failed)


async def test_the_environments_function_scores_an_answer_the_agent_writes(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text("def right(record, messages, answer):\n    return float(answer == '5')\n")
    command = agent(tmp_path, "result({'answer': ask(task['messages'])})")
    async with open_site() as site, site.stack:
        harness = site.agent(tmp_path, *command, reward="rewards.py:right")
        assert (await site.report_of(harness)).reward == 1.0


async def test_an_answer_that_the_agent_writes_is_for_the_jobs_rules(tmp_path: Path) -> None:
    command = agent(tmp_path, "result({'answer': ask(task['messages']) + '\\ud800'})")
    async with open_site() as site, site.stack:
        report = await site.report_of(site.agent(tmp_path, *command))
        assert (report.reward, report.failed, report.answer) == (None, None, "5?")


TALK = """
first = ask(task["messages"])
history = task["messages"] + [{"role": "assistant", "content": first}, {"role": "user", "content": "sure?"}]
second = ask(history)
"""
SEEN = """
import json, os

def right(record, messages, answer):
    with open("given.json", "w") as file:
        json.dump({"messages": messages, "answer": answer, "left": os.listdir(os.environ["HOME"])}, file)
    return 1.0

def home(record, messages, answer):
    with open(os.path.expanduser("~/work.txt")) as file:
        return float(file.read())
"""


async def test_a_reward_function_has_the_whole_conversation_of_an_agent(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(SEEN)
    async with open_site(scripted("4", "5")) as site, site.stack:
        harness = site.agent(tmp_path, *agent(tmp_path, TALK), reward="rewards.py:right")
        assert (await site.report_of(harness)).reward == 1.0
        given = json.loads((tmp_path / "given.json").read_text())
        assert [(one["role"], one["content"]) for one in given["messages"]] == [
            ("user", "2+3"),
            ("assistant", "4"),
            ("user", "sure?"),
            ("assistant", "5"),
        ]
        assert given["answer"] == "5", "the model's last answer, where the program writes none"


async def test_the_reward_function_of_the_guide_counts_an_agents_tool_calls(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(
        "def right(record, messages, answer):\n"
        "    calls = sum(len(message.get('tool_calls') or ()) for message in messages)\n"
        "    return {'reward': float(answer.strip() == str(record['answer'])), 'calls': calls}\n"
    )
    program = """
        tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
        said = ask(task["messages"], [tool])
        reply = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "5"}
        ask(task["messages"] + [said, reply], [tool])
    """
    command = agent(tmp_path, program)
    (tmp_path / "agent.py").write_text(
        (tmp_path / "agent.py")
        .read_text()
        .replace("def ask(messages):", "def ask(messages, tools):")
        .replace('"messages": messages}', '"messages": messages, "tools": tools}')
        .replace('["message"]["content"]', '["message"]')
    )
    async with open_site(scripted(call("add", '{"a": 2, "b": 3}'), "5")) as site, site.stack:
        report = await site.report_of(site.agent(tmp_path, *command, reward="rewards.py:right"))
        assert (report.reward, report.metrics["calls"], report.failed) == (1.0, 1, None)


async def test_a_reward_function_reads_what_the_agent_left_in_its_home(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(SEEN)
    program = "open(os.environ['HOME'] + '/work.txt', 'w').write('0.5' if task['episode'] == '0.0.0' else '0.25')"
    async with open_site() as site, site.stack:
        harness = site.agent(tmp_path, *agent(tmp_path, program), reward="rewards.py:home")
        await site.run(harness)
        episodes = [await site.put(index) for index in range(3)]
        rewards = [(await site.environments.reported(one)).reward for one in episodes]
        assert rewards == [0.5, 0.25, 0.25]


@pytest.mark.parametrize(
    "program",
    [
        "import shutil; shutil.rmtree(os.environ['HOME'])",
        "os.chmod(os.environ['HOME'], 0)",
        "import shutil; shutil.rmtree(os.environ['HOME']); os.symlink('/nowhere', os.environ['HOME'])",
    ],
)
async def test_an_agent_that_removes_its_home_is_scored_all_the_same(tmp_path: Path, program: str) -> None:
    (tmp_path / "rewards.py").write_text(SEEN)
    async with open_site() as site, site.stack:
        report = await site.report_of(site.agent(tmp_path, *agent(tmp_path, program), reward="rewards.py:right"))
        assert (report.reward, report.failed) == (1.0, None)


async def test_an_agent_that_its_deadline_ended_is_scored_with_its_conversation(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(SEEN)
    command = agent(tmp_path, f"{TALK}\nimport time; time.sleep(600)")
    async with open_site(scripted("4", "5")) as site, site.stack:
        harness = site.agent(tmp_path, *command, reward="rewards.py:right")
        report = await site.report_of(harness, seconds=8.0)
        assert (report.reward, report.failed, harness.stats.killed) == (1.0, None, 1)
        assert len(json.loads((tmp_path / "given.json").read_text())["messages"]) == 4
