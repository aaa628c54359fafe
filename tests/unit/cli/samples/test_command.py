"""`rljob samples FOLDER`: the samples of a run, chosen and drawn for people, or as JSON for programs."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_runtime.cli import app
from rljob_runtime.samples import Sample, SampleFolder, SampleOutcome

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


def test_texts_are_drawn_as_written_without_control_characters(folder):
    done = RUN.invoke(app, ["samples", folder, "--count", "9"])
    assert done.exit_code == 0
    assert "answer 3.0 [bold]" in done.output
    assert "reward 0.5 (right 0.5)" in done.output
    assert "filtered: EqualRewards" in done.output
    assert "␛[2Jlost" in done.output
    assert "\x1b[2J" not in done.output


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
        (["no/such"], "no/such: no such folder; the folder of a run (--workdir), or an RLJob's name would be right"),
        (
            ["EMPTY"],
            "has no samples: no round has ended, spec.samples.perRound is 0, or the run is of an earlier version",
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
