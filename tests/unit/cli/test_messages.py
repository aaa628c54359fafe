"""What `rljob` says about input it cannot use: one line with the file, where, and what would be right; no traceback."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from rljob_runtime.cli import app
from rljob_runtime.perf_model.model_shape import QWEN2_5_7B
from rljob_runtime.perf_model.profile import Profile, Subject
from rljob_runtime.workloads import read_trace
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "minimal.yaml"


@pytest.fixture
def rljob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command, in a folder of its own and without a cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", "config")
    monkeypatch.setenv("NO_COLOR", "1")

    def invoke(*arguments: str) -> Result:
        result = CliRunner().invoke(app, arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


NO_FILES = [
    pytest.param(b"\xff\xfe\x00", "line 1: byte 0xff is not UTF-8; must be a text", id="not UTF-8"),
    pytest.param(b"a: 1\nb: \xe4\n", "line 2: byte 0xe4 is not UTF-8; must be a text", id="Latin-1"),
    pytest.param(b"a: 1\nb: [1\nc: 2\n", "line 3: 'c: 2' must be YAML or JSON: expected ','", id="an open bracket"),
    pytest.param(b"a: 1\n\tb: 2\n", "line 2: 'b: 2' must be YAML or JSON: found character '\\t'", id="a tab"),
    pytest.param(b"a: 1\nb: \x07\n", "line 2: 'b: \\x07' must be YAML or JSON: special characters", id="a bell"),
]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *NO_FILES,
        pytest.param(b"", "(file): (absent) is empty; must hold exactly one RLJob", id="empty"),
        pytest.param(b"# nothing\n---\n", "(file): (absent) is empty; must hold exactly one RLJob", id="comments"),
        pytest.param(b"just words\n", "(file): 0 RLJobs found; must hold exactly one", id="words"),
        pytest.param(b"kind: RLJob\n2020-01-01: 1\n", "line 2: '2020-01-01: 1' must be", id="a date for a key"),
        pytest.param(b"kind: RLJob\na: 2020-13-45\n", "month must be in 1..12", id="no date"),
        pytest.param(b"a: " + b"9" * 5000, "line 1: 'a: 999", id="a number too long"),
        pytest.param(b"[" * 5000, "must be YAML or JSON: at most 100 levels of nesting", id="nested too deep"),
        pytest.param(
            b"kind: RLJob\napiVersion: v1\n", "apiVersion: 'v1' must be rljob.dev/v1alpha1", id="another kind"
        ),
    ],
)
def test_run_with_a_file_that_holds_no_job(rljob: Callable[..., Result], content: bytes, said: str) -> None:
    Path("job.yaml").write_bytes(content)
    result = rljob("run", "-f", "job.yaml")
    assert result.exit_code == 2
    assert result.stderr.startswith("job.yaml: ")
    assert said in result.stderr
    assert result.stdout == ""


def test_run_tells_a_job_that_contains_itself(rljob: Callable[..., Result]) -> None:
    Path("job.yaml").write_text("apiVersion: rljob.dev/v1alpha1\nkind: RLJob\nspec: &a {rounds: *a}\n")
    assert "job.yaml: (file): (absent) must not contain itself" in rljob("run", "-f", "job.yaml").stderr


def test_run_tells_every_mistake_on_a_line_of_its_own(rljob: Callable[..., Result]) -> None:
    manifest = yaml.safe_load(EXAMPLE.read_text())
    manifest["spec"] |= {"rounds": 0, "round": 1}
    Path("job.yaml").write_text(yaml.safe_dump(manifest))
    result = rljob("run", "-f", "job.yaml")
    assert result.exit_code == 2
    assert sorted(line.split(": ")[1] for line in result.stderr.splitlines()) == ["spec.round", "spec.rounds"]
    assert not Path("runs").exists()


@pytest.mark.parametrize(("name", "said"), [("missing.yaml", "No such file"), (".", "Is a directory")])
def test_run_with_a_file_that_cannot_be_read(rljob: Callable[..., Result], name: str, said: str) -> None:
    result = rljob("run", "-f", name)
    assert (result.exit_code, result.stderr) == (
        2,
        f"{name}: cannot be read: {said}{' or directory' * ('N' in said)}\n",
    )


# --- status ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *NO_FILES,
        pytest.param(b"", "no cluster: config: current-context is not set", id="empty"),
        pytest.param(b"- 1\n", "config: holds [1]; must be a kubeconfig", id="a list"),
        pytest.param(b"words\n", "config: holds 'words'; must be a kubeconfig", id="words"),
        pytest.param(b"clusters: []\n", "current-context", id="no context"),
    ],
)
def test_status_with_a_kubeconfig_that_is_none(rljob: Callable[..., Result], content: bytes, said: str) -> None:
    Path("config").write_bytes(content)
    result = rljob("status", "demo")
    assert result.exit_code == 2
    assert "config" in result.stderr
    assert said in result.stderr


def test_status_with_a_folder_or_nothing_for_a_kubeconfig(rljob: Callable[..., Result]) -> None:
    told = "no cluster: no kubeconfig: config does not exist; set KUBECONFIG to the file of a cluster\n"
    assert rljob("status", "demo").stderr == told
    assert rljob("samples", "demo").stderr == f"demo: no folder here; in the cluster: {told}"
    assert rljob("samples", "demo", "-n", "team").stderr == told
    Path("config").mkdir()
    assert "config: cannot be read: Is a directory" in rljob("status", "demo").stderr


def _kubeconfig(server: str) -> str:
    context = {"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "lab"}}
    return yaml.safe_dump(
        {
            "clusters": [{"name": "a", "cluster": {"server": server}}],
            "contexts": [context],
            "users": [{"name": "a", "user": {"token": "x"}}],
            "current-context": "a",
        }
    )


@pytest.mark.parametrize("server", ["http://127.0.0.1:1", "htp://127.0.0.1:1"])
def test_status_of_a_cluster_that_does_not_answer(rljob: Callable[..., Result], server: str) -> None:
    Path("config").write_text(_kubeconfig(server))
    result = rljob("status", "demo")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"the cluster at {server}: ")


@pytest.fixture
def answers() -> Iterator[dict[str, Any]]:
    """A server that holds one RLJob, `demo`: `answers["demo"]`; its address is `answers["url"]`."""
    held: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = held.get("demo") if self.path == "/apis/rljob.dev/v1alpha1/namespaces/lab/rljobs/demo" else None
            body = found.encode() if isinstance(found, str) else json.dumps(found or {"kind": "Status"}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        held["url"] = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield held
        server.shutdown()
        thread.join()


def test_status_draws_what_a_newer_version_wrote(rljob: Callable[..., Result], answers: dict[str, Any]) -> None:
    Path("config").write_text(_kubeconfig(answers["url"]))
    missing = rljob("status", "demo")
    assert (missing.exit_code, missing.stderr) == (
        1,
        "rljob/demo in lab: 404: is the CRD installed, and the name right?\n",
    )
    runtime = {"round": 3, "stage": "Generating", "unheard": {"of": 1}}
    answers["demo"] = {"spec": {"rounds": 7}, "status": {"phase": "Running", "runtime": runtime, "novel": [1]}}
    found = rljob("status", "demo")
    assert found.exit_code == 0
    assert "Running" in found.stdout
    assert "3/7" in found.stdout
    answers["demo"]["status"]["runtime"]["round"] = "three"
    broken = rljob("status", "demo")
    assert (broken.exit_code, broken.stderr) == (1, "status.runtime.round: 'three' must be a whole number\n")
    answers["demo"] = '{"spec": ' + "[" * 100_000 + "]" * 100_000 + "}"
    deep = rljob("status", "demo")
    assert (deep.exit_code, deep.stderr) == (1, "rljob/demo in lab: its spec is nested too deeply to be read\n")


# --- bench -----------------------------------------------------------------------------------------------------------


class _Point:
    """An entry point that is found without an installation."""

    def __init__(self, name: str) -> None:
        self.name = name

    def load(self) -> Callable[..., dict[str, Any]]:
        def function(*, quick: bool, seed: int) -> dict[str, Any]:
            figure = {"name": "speed", "value": 2.0, "unit": "x", "better": "higher", "goal": 1.5}
            return {"bench": self.name, "seed": seed, "settings": {"quick": quick}, "figures": [figure]}

        def of_traces(*, quick: bool, seed: int, traces: Path | None = None) -> dict[str, Any]:
            if traces is None:
                return function(quick=quick, seed=seed)
            return {"steps": len(read_trace(traces).steps)}

        return of_traces if self.name == "chain" else function


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> None:
    # By its path `rljob_runtime.cli.bench` would be the command of that name.
    monkeypatch.setattr(
        import_module("rljob_runtime.cli.bench"),
        "entry_points",
        lambda group: [_Point("relay"), _Point("chain"), _Point("relay-real")],
    )


@pytest.mark.parametrize("arguments", [(), ("relay",)])
def test_bench_names_the_extra_that_brings_benchmarks(
    rljob: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(import_module("rljob_runtime.cli.bench"), "entry_points", lambda group: [])
    result = rljob("bench", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "no benchmarks are installed; install the extra `bench` (in a checkout: pip install -e bench)\n"
    )


def _result_file(path: Path, bench: str, **figure: object) -> Path:
    row = {"name": "a|b", "value": 1.23456, "unit": "ratio", "better": "higher", "goal": 0, "limit": None} | figure
    path.write_text(json.dumps({"bench": bench, "seed": 3, "figures": [row]}), encoding="utf-8")
    return path


def test_bench_prints_results_of_a_folder_as_markdown(rljob: Callable[..., Result], tmp_path: Path) -> None:
    _result_file(tmp_path / "b.json", "second", limit="the disk")
    _result_file(tmp_path / "a.json", "first")
    result = rljob("bench", "--markdown", str(tmp_path))
    head = "| figure | value | unit | better | goal | limit |\n| --- | --- | --- | --- | --- | --- |\n"
    assert (result.exit_code, result.stdout) == (
        0,
        f"## first (seed 3)\n\n{head}| a\\|b | 1.235 | ratio | higher | 0 |  |\n\n"
        f"## second (seed 3)\n\n{head}| a\\|b | 1.235 | ratio | higher | 0 | the disk |\n",
    )


@pytest.mark.parametrize("text", ["[]", "{}", "{", '{"bench": "a", "seed": 0, "figures": [{}]}'])
def test_bench_refuses_markdown_of_another_file(rljob: Callable[..., Result], tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    result = rljob("bench", "--markdown", str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "a.json: the file is no result of" in result.stderr.replace("\n", " ")


def test_bench_refuses_markdown_of_an_empty_folder(rljob: Callable[..., Result], tmp_path: Path) -> None:
    result = rljob("bench", "--markdown", str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the folder has no result" in result.stderr


@pytest.mark.usefixtures("points")
def test_bench_without_a_name_lists_them(rljob: Callable[..., Result]) -> None:
    result = rljob("bench")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "chain\nrelay\nrelay-real\n", "")


@pytest.mark.usefixtures("points")
@pytest.mark.parametrize("name", ["list", "reley", ""])
def test_bench_refuses_a_name_that_is_none(rljob: Callable[..., Result], name: str) -> None:
    result = rljob("bench", name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"no benchmark {name!r}; there are: chain, relay, relay-real\n"


@pytest.mark.usefixtures("points")
def test_bench_refuses_traces_that_cannot_be_measured(rljob: Callable[..., Result]) -> None:
    unmeasured = rljob("bench", "relay", "--traces", "lengths")
    assert (unmeasured.exit_code, unmeasured.stdout) == (2, "")
    assert unmeasured.stderr == "--traces: benchmark 'relay' has no such option; it has none of its kind\n"
    absent = rljob("bench", "chain", "--traces", "lengths")
    assert (absent.exit_code, absent.stdout) == (2, "")
    assert absent.stderr.startswith("--traces: lengths is no folder")


@pytest.mark.usefixtures("points")
@pytest.mark.parametrize("option", ["--rounds", "--auto-rounds", "--reward-seconds", "--trainers", "--profile"])
def test_bench_refuses_an_option_that_the_benchmark_does_not_know(rljob: Callable[..., Result], option: str) -> None:
    result = rljob("bench", "chain", option, "8")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"{option}: benchmark 'chain' has no such option; it has --traces\n"


@pytest.mark.usefixtures("points")
def test_bench_refuses_a_file_that_it_could_not_write_before_it_measures(
    rljob: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Point, "load", lambda self: pytest.fail("measured"))
    result = rljob("bench", "chain", "--json", "no/such/x.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"--json no/such/x.json: {Path('no/such').absolute()} is not a folder\n"


@pytest.mark.usefixtures("points")
def test_bench_tells_a_file_that_cannot_be_written(rljob: Callable[..., Result]) -> None:
    result = rljob("bench", "chain", "--json", ".")
    assert (result.exit_code, result.stderr) == (2, "--json . cannot be written: Is a directory\n")


@pytest.mark.usefixtures("points")
@pytest.mark.parametrize("option", ["--seed", "--rounds", "--auto-rounds", "--trainers"])
def test_bench_refuses_numbers_below_the_least(rljob: Callable[..., Result], option: str) -> None:
    result = rljob("bench", "chain", option, "-1")
    assert result.exit_code == 2
    assert option in result.stderr
    assert "greater" in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--trainers", "6"), "--trainers 6: 7b-8k: 16 accelerators, 6 of them the trainer's; multiples of 4"),
        (("--trainers", "16"), "--trainers 16: 7b-8k: 16 of 16 accelerators are the trainer's; from 4 to 12 would"),
        (("--reward-seconds", "1"), "--reward-seconds 1: 2 or more"),
        (("--reward-seconds", "9", "--reward-seconds", "9"), "--reward-seconds 9: 2 or more, which is the least"),
        (("--profile", "none.json"), "none.json: cannot be read: No such file or directory"),
        (("--profile", "job.yaml"), "--profile job.yaml: profile: Invalid JSON"),
    ],
)
def test_bench_refuses_what_an_option_cannot_be(
    rljob: Callable[..., Result], options: tuple[str, ...], said: str
) -> None:
    Path("job.yaml").write_text("kind: RLJob\n")
    result = rljob("bench", "rollpacker", "--quick", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(said)


def test_bench_hands_the_profile_of_a_file_to_the_benchmark(rljob: Callable[..., Result]) -> None:
    subject = Subject(model=QWEN2_5_7B, engine="VLLM", engine_version="0.32.0", hardware="4 x H800")
    Path("p.json").write_text(Profile(subject=subject, kv_tokens={}, decode=(), prefill=()).to_json())
    other = rljob("bench", "planner", "--quick", "--profile", "p.json")
    assert (other.exit_code, other.stdout) == (2, "")
    assert other.stderr.startswith(
        "--profile p.json: profile.subject.model.layers: measured with 28 (Qwen2.5-7B), wanted"
    )
    empty = rljob("bench", "stream", "--quick", "--profile", "p.json")
    assert empty.stderr.startswith(
        "--profile p.json: profile.kv_tokens: tensor parallel size 1 is wanted, measured: none; "
    )


@pytest.mark.usefixtures("points")
def test_bench_on_real_engines_is_another_one_of_its_name(rljob: Callable[..., Result]) -> None:
    result = rljob("bench", "relay", "--real")
    assert result.exit_code == 0
    assert "relay-real (seed 0)" in result.stdout
    absent = rljob("bench", "chain", "--real")
    assert (absent.exit_code, absent.stdout) == (2, "")
    assert absent.stderr == "--real: there is no benchmark chain-real; there is one of: relay\n"


@pytest.mark.usefixtures("points")
def test_bench_prints_and_writes_the_result(rljob: Callable[..., Result]) -> None:
    result = rljob("bench", "chain", "--seed", "4", "--quick", "--json", "chain.json")
    assert result.exit_code == 0
    assert "chain (seed 4)" in result.stdout
    assert json.loads(Path("chain.json").read_text())["settings"] == {"quick": True}
