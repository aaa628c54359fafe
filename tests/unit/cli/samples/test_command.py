"""`rljob samples FOLDER`: the samples of a run, chosen and drawn for people, or as JSON for programs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_runtime.cli import app
from rljob_runtime.samples import EvaluationSampleFolder, Sample, SampleFolder, SampleOutcome
from rljob_runtime.samples import page as samples_page
from tests.support.sample_episodes import ASKED, CALL, EPISODE, episode_sample

RUN = CliRunner()


@pytest.fixture
def folder(tmp_path):
    samples = SampleFolder(tmp_path / "run")
    for number in (1, 2, 3):
        samples.write(number, [sample(number, place, reward) for place, reward in enumerate((0.5, 1.0, 0.0))], keep=9)
    lost = sample(3, 9, None, outcome=SampleOutcome.FILTERED, reason="EqualRewards", response="\x1b[2Jlost")
    samples.write(3, [*samples.read(3), lost], keep=9)
    (tmp_path / "run/rounds.jsonl").write_text('{"round": 1, "reward": 0.5}\n{"round": 2, "rew')
    return str(tmp_path / "run")


def sample(number: int, place: int, reward: float | None, **changes: object) -> Sample:
    values = {"outcome": SampleOutcome.TRAINED, "response": f"answer {number}.{place} [bold]"} | changes
    rewards = {"right": reward} if reward is not None else {}
    return Sample(
        round=number, prompt_id="0.1", sample=place, attempt=1, reward=reward, rewards=rewards, tokens=3, **values
    )


def places(*arguments: str) -> list[tuple[int, int]]:
    done = RUN.invoke(app, ["samples", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [(one["round"], one["sample"]) for one in lines]


def test_the_newest_round_is_shown_and_others_on_request(folder):
    assert places(folder) == [(3, 0), (3, 1), (3, 2), (3, 9)]
    assert places(folder, "--round", "1") == [(1, 0), (1, 1), (1, 2)]


def test_best_worst_and_what_was_not_trained_on(folder):
    assert places(folder, "--best") == [(3, 1), (3, 0), (3, 2)]
    assert places(folder, "--worst") == [(3, 2), (3, 0), (3, 1)]
    assert places(folder, "--filtered") == [(3, 9)]


@pytest.fixture
def evaluated(folder):
    """The run also has two results of an evaluation; a reward failed in the second."""
    for number in (0, 2):
        answers = [sample(number, place, place / 2, outcome=SampleOutcome.EVALUATED) for place in range(3)]
        failed = sample(number, 3, None, outcome=SampleOutcome.FAILED, reason="RewardFailed")
        found = [replace(one, prompt_id=f"evaluation:held/{number}.{one.sample}") for one in [*answers, failed]]
        EvaluationSampleFolder(Path(folder), "held").write(number, found, keep=9)
    lines = [json.dumps({"name": "held", "round": number}) for number in (0, 2)]
    (Path(folder) / "evaluations.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_samples_of_an_evaluation(evaluated, tmp_path):
    held = (evaluated, "--evaluation", "held")
    assert places(*held) == [(2, 0), (2, 1), (2, 2), (2, 3)]
    assert places(*held, "--round", "0", "--best") == [(0, 2), (0, 1), (0, 0)]
    assert places(*held, "--filtered") == [(2, 3)]
    assert places(evaluated) == [(3, 0), (3, 1), (3, 2), (3, 9)], "training's are apart"
    shown = RUN.invoke(app, ["samples", *held]).output
    assert "round 2  evaluation:held/2.2.2  evaluated  reward 1 (right 1)" in shown
    assert "answer 2.2 [bold]" in shown
    page = tmp_path / "page.html"
    assert RUN.invoke(app, ["samples", *held, "--html", str(page)]).exit_code == 0
    assert "evaluation:held/0.1" in page.read_text()
    assert "answer 3.0" not in page.read_text()


def rounds_in(page: Path) -> list[tuple[int, str]]:
    """Rounds and prompts of the samples in a page."""
    (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page.read_text())
    return [(one["round"], one["promptId"].partition("/")[0]) for one in json.loads(data)["samples"]]


def test_a_page_has_training_and_all_evaluations_and_the_newest_first(evaluated, tmp_path, monkeypatch):
    other = replace(sample(3, 0, 1.0, outcome=SampleOutcome.EVALUATED), prompt_id="evaluation:other/3.0")
    EvaluationSampleFolder(Path(evaluated), "other").write(3, [other], keep=9)
    with (Path(evaluated) / "evaluations.jsonl").open("a") as file:
        file.write(json.dumps({"name": "other", "round": 3}) + "\n")
    page = tmp_path / "page.html"
    done = RUN.invoke(app, ["samples", evaluated, "--html", str(page)])
    assert "19 samples" in done.output
    training = [(3, "0.1")] * 4
    newest = [*training, (3, "evaluation:other")]
    older = [(2, "0.1")] * 3 + [(2, "evaluation:held")] * 4 + [(1, "0.1")] * 3 + [(0, "evaluation:held")] * 4
    assert rounds_in(page) == newest + older
    assert RUN.invoke(app, ["samples", evaluated, "--evaluation", "other", "--html", str(page)]).exit_code == 0
    assert rounds_in(page) == [(3, "evaluation:other")]
    room = sum(len(one.to_json()) for one in [*SampleFolder(Path(evaluated)).read(3), other])
    monkeypatch.setattr(samples_page.page, "__defaults__", (room, ()))
    done = RUN.invoke(app, ["samples", evaluated, "--html", str(page)])
    assert "5 samples; 14 older samples left out" in done.output
    assert rounds_in(page) == newest


def test_an_unknown_evaluation_is_told_with_the_known_ones(evaluated, tmp_path):
    for job, known in (
        (evaluated, "it has results of held"),
        (str(tmp_path), "it has no results yet (spec.evaluation)"),
    ):
        done = RUN.invoke(app, ["samples", job, "--evaluation", "test"])
        assert done.exit_code == 2
        assert f"has no result of it; {known}" in " ".join(done.output.split())


def test_samples_of_one_source(tmp_path):
    job = tmp_path / "mixed"
    mixed = [
        replace(sample(1, place, 0.5), prompt_id=f"{name}/0.{place}")
        for place, name in enumerate(("words", "sums", "words"))
    ]
    SampleFolder(job).write(1, mixed, keep=9)
    (job / "rounds.jsonl").write_text('{"round": 1, "reward": 0.5}\n')
    assert places(str(job), "--source", "words") == [(1, 0), (1, 2)]
    assert places(str(job), "--source", "sums", "--best") == [(1, 1)]
    done = RUN.invoke(app, ["samples", str(job), "--source", "code"])
    assert done.exit_code == 2
    assert "--source code: round 1 has no sample of it; it has samples of sums, words" in done.output.replace("\n", " ")
    page = tmp_path / "page.html"
    assert RUN.invoke(app, ["samples", str(job), "--source", "sums", "--html", str(page)]).exit_code == 0
    assert "answer 1.1" in page.read_text()
    assert "answer 1.0" not in page.read_text()


def test_a_job_without_named_sources_has_none(folder):
    done = RUN.invoke(app, ["samples", folder, "--source", "words"])
    assert done.exit_code == 2
    assert "the job has no named sources" in done.output.replace("\n", " ")


def test_texts_are_drawn_as_written_without_control_characters(folder):
    done = RUN.invoke(app, ["samples", folder, "--count", "9"])
    assert done.exit_code == 0
    assert "answer 3.0 [bold]" in done.output
    assert "reward 0.5 (right 0.5)" in done.output
    assert "filtered: EqualRewards" in done.output
    assert "␛[2Jlost" in done.output
    assert "\x1b[2J" not in done.output


def test_a_failed_sample_shows_the_cause(tmp_path):
    cause = "reward right (Raised): ValueError: no number in it (rewards.py:12, in score)"
    failed = sample(1, 0, None, outcome=SampleOutcome.FAILED, reason="RewardFailed", cause=cause)
    SampleFolder(tmp_path).write(1, [failed], keep=9)
    done = RUN.invoke(app, ["samples", str(tmp_path), "--filtered"], env={"COLUMNS": "120"})
    assert "failed: RewardFailed" in done.output
    assert cause in done.output


def test_a_round_without_such_samples_is_named(tmp_path):
    SampleFolder(tmp_path).write(7, [sample(7, 0, 1.0)], keep=9)
    done = RUN.invoke(app, ["samples", str(tmp_path), "--filtered"])
    assert (done.exit_code, done.output) == (0, "no sample of round 7 is of that kind\n")


def test_the_terminal_says_how_many_are_left(folder):
    done = RUN.invoke(app, ["samples", folder, "--count", "1"])
    assert "3 more: --count, or --json for all" in done.output


def test_a_page_is_written(folder, tmp_path):
    done = RUN.invoke(app, ["samples", folder, "--html", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    assert "page.html: 1 rounds, 10 samples" in done.output
    text = (tmp_path / "page.html").read_text()
    assert "answer 1.2 [bold]" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["FOLDER", "--round", "7"], "round 7 has no samples; rounds 1-3 have some (spec.samples.keepRounds)"),
        (["FOLDER", "--best", "--worst"], "--best and --worst exclude each other: give one"),
        (["FOLDER", "--json", "--html", "x"], "--json and --html exclude each other: give one"),
        (["FOLDER", "--source", "a", "--evaluation", "b"], "--source and --evaluation exclude each other: give one"),
        (["no/such"], "no/such: no such folder; the folder of a run (--workdir), or an RLJob's name would be right"),
        (
            ["EMPTY"],
            "has no samples: no round or evaluation has ended, spec.samples.perRound is 0, or the run is of an earlier "
            "version",
        ),
        (["FOLDER", "--html", "FOLDER"], "Is a directory"),
    ],
)
def test_a_mistake_has_one_line(folder, tmp_path, arguments, message):
    (tmp_path / "empty").mkdir()
    given = [{"FOLDER": folder, "EMPTY": str(tmp_path / "empty")}.get(one, one) for one in arguments]
    done = RUN.invoke(app, ["samples", *given])
    assert done.exit_code == 2
    assert message in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_a_damaged_file_is_named(folder):
    path = SampleFolder(Path(folder)).file(3)
    path.write_text("{}\n" + path.read_text())
    done = RUN.invoke(app, ["samples", folder])
    assert done.exit_code == 1
    assert "round-000003.jsonl: line 1: not a sample" in done.output


def test_an_episode_is_shown_turn_by_turn(tmp_path):
    SampleFolder(tmp_path).write(3, [episode_sample()], keep=9)
    shown = RUN.invoke(app, ["samples", str(tmp_path)], env={"COLUMNS": "160"}).output
    lines = [line.strip("│╭╰─╮╯ ") for line in shown.splitlines()]
    begin = lines.index("system")
    assert lines[begin : begin + 17] == [
        "system",
        "Use the tool.",
        "user",
        "47 * 68?",
        "assistant  turn 1: 11 tokens sampled after 24 given, end: stop, weights 3, 0 s outside, 0.25 s in the model",
        '<tool_call>{"name": "calculate"}</tool_call>',
        'calls calculate({"expression": "47 * 68"})',
        "tool calculate",
        "3196",
        "assistant  turn 2: 5 tokens sampled after 7 given, end: stop, weights 3, 1.5 s outside, 0.125 s in the model",
        "It is 3196.",
        "branch: from the beginning",
        "given as tokens",
        "raw words",
        "assistant  turn 3: 2 tokens sampled after 9 given, end: length, weights 4",
        "cut",
        lines[begin + 16],
    ]
    assert "calc  3 turns  truncated  the limit of turns was reached  1 forks" in lines[begin + 16]


def test_a_call_is_shown_with_its_seconds(tmp_path):
    asked = replace(ASKED, calls=(replace(CALL, seconds=0.25),))
    SampleFolder(tmp_path).write(3, [episode_sample(replace(EPISODE, turns=(asked,)))], keep=9)
    shown = RUN.invoke(app, ["samples", str(tmp_path)], env={"COLUMNS": "160"}).output
    assert 'calls calculate({"expression": "47 * 68"}), 0.25 s' in shown


def test_programs_get_the_turns_of_an_episode(tmp_path):
    SampleFolder(tmp_path).write(3, [episode_sample()], keep=9)
    done = RUN.invoke(app, ["samples", str(tmp_path), "--json"])
    turns = json.loads(done.stdout)["episode"]["turns"]
    assert [turn["sampled"] for turn in turns] == [ASKED.sampled, "It is 3196.", "cut"]
    assert turns[0]["calls"] == [{"name": "calculate", "arguments": '{"expression": "47 * 68"}', "id": "call_2_0"}]
