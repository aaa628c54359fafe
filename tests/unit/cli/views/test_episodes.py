"""Turns and seconds of episodes in the lines of a run and in the status; jobs without environments have neither."""

from rljob_api.status import EpisodesReport, RoundReport
from rljob_runtime.cli.run.display import round_line
from rljob_runtime.cli.views.episodes import episode_rows

REPORT = EpisodesReport(turns_mean=2.25, turns_p99=6, model_seconds=1.5, outside_seconds=0.5)


def test_a_round_says_how_many_turns_its_episodes_have():
    line = round_line(RoundReport(round=2, reward=0.5, episodes=REPORT), 9)
    assert line == "round 2/9  reward 0.5  2.25 turns each  0.5 s outside the model"
    waiting = RoundReport(round=2, reward=0.5, episodes=REPORT, idle_environments=0.7)
    assert round_line(waiting, 9).endswith("0.5 s outside the model  engines 70% idle for them")
    assert round_line(RoundReport(round=2, reward=0.5), 9) == "round 2/9  reward 0.5"


def test_a_status_says_what_went_wrong_if_something_did():
    assert dict(episode_rows(REPORT, 0.01)) == {
        "turns": "2.25, at most 6 in 99 %",
        "episode": "1.5 s in the model, 0.5 s outside",
    }
    failed = [{"part": "engine", "attempts": 2}, {"part": "tool server", "attempts": 1}]
    wrong = EpisodesReport(
        truncated_by_turns=0.25,
        truncated_by_seconds=0.0,
        reencoded_tokens=3,
        fake_zeros=2,
        differing_traces=4,
        prefix_hit_share=0.875,
        failed_attempts=failed,
        environments=[
            {"name": "calc", "most_open": 12, "wait_seconds": 2.0},
            {"name": "quick", "most_open": 3, "wait_seconds": 0.01},
        ],
    )
    assert dict(episode_rows(wrong, 0.7)) == {
        "engines": "70% of their time wait for environments",
        "prefix hits": "88% of the prompts of later turns",
        "cut at": "turns 25%",
        "for a runner": "calc 2 s (most open: 12)",
        "failed": "engine 2, tool server 1",
        "re-encoded": "3 tokens; 0 would be right",
        "fake zeros": "2 responses; 0 would be right",
        "traces": "4 attempts differ from the stored turns; the coordinator's log says how",
    }
