"""Bad evaluations and bad sources of prompts."""

from __future__ import annotations

from typing import Any

from rljob_api.errors import ABSENT
from tests.support.api.invalid_specs.case import Case
from tests.support.api.jobs import REMOVE


def _source(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "prompts": {"reasoningGym": {"task": "basic_arithmetic"}}, **fields}


def _evaluation(path: str, advice: str, value: Any, *evaluations: dict[str, Any], **edits: Any) -> Case:
    """A job with these evaluations; each has prompts of reasoning-gym unless it has others."""
    gym = {"reasoningGym": {"task": "basic_arithmetic"}}
    return Case(
        {"spec.evaluation": [{"name": "a", "prompts": gym, **one} for one in evaluations], **edits},
        f"spec.evaluation{path}",
        advice,
        value=value,
    )


def _sources(path: str, advice: str, value: Any, *sources: dict[str, Any], **edits: Any) -> Case:
    """A job with these sources in place of its prompts."""
    more = {"spec.data.prompts": REMOVE, "spec.data.sources": list(sources)}
    return Case({**more, **edits}, f"spec.data.sources{path}", advice, value=value)


EVALUATION_CASES = [
    _evaluation("[1].name", "unique", "a", {}, {}),
    _evaluation("[0].name", "must be lower-case letters", "A b", {"name": "A b"}),
    _evaluation("[0].prompts", "exactly one source: file, dataset, reasoningGym or heldOut", ABSENT, {"prompts": {}}),
    _evaluation("[0].prompts.heldOut", "needs spec.data.heldOut", True, {"prompts": {"heldOut": True}}),
    _evaluation(
        "[0].prompts.source",
        "needs heldOut: true",
        "a",
        {"prompts": {"reasoningGym": {"task": "basic_arithmetic"}, "source": "a"}},
    ),
    _evaluation(
        "[0].prompts.source",
        "must be the name of a source in spec.data.sources: there is none",
        "a",
        {"prompts": {"heldOut": True, "source": "a"}},
        **{"spec.data.heldOut": {"fraction": 0.1}},
    ),
    _evaluation("[0].rewards[0]", "must be the name of a rule in spec.rewards", "absent", {"rewards": ["absent"]}),
    _evaluation("[0].maxPrompts", "must be at most 64", 65, {"maxPrompts": 65, "responsesPerPrompt": 1024}),
    _evaluation("[0].everyRounds", "must be at least 1", 0, {"everyRounds": 0}),
    _evaluation(
        "[0].sampling.maxResponseTokens",
        "must be at most data.maxResponseTokens (8)",
        9,
        {"sampling": {"maxResponseTokens": 9}},
        **{"spec.data.maxResponseTokens": 8},
    ),
    _evaluation(
        "[0].rewards",
        "kind ReasoningGym needs prompts from reasoningGym",
        ABSENT,
        {"prompts": {"file": {"path": "/p.jsonl"}}},
    ),
]

WORDS = {"file": {"path": "/a"}}
SOURCE_CASES = [
    Case(
        {"spec.data.sources": [_source("a", weight=1)]},
        "spec.data.sources",
        "excludes spec.data.prompts",
        value="a",
    ),
    _sources("[0].weight", "must be more than 0", 0, _source("a", weight=0), _source("b", weight=1)),
    _sources("[1].weight", "must be more than 0", -1, _source("a", weight=1), _source("b", weight=-1)),
    _sources("[1].name", "must be unique", "a", _source("a", weight=1), _source("a", weight=2)),
    _sources("[0].name", "must be lower-case letters", "evaluation:a", _source("evaluation:a", weight=1)),
    _sources("[1].weight", "is required", ABSENT, _source("a", weight=1), _source("b")),
    _sources("[0].promptsPerRound", "excludes weight", 8, _source("a", weight=1, promptsPerRound=8)),
    _sources(
        "[1].promptsPerRound",
        "must be weight, as in the first source",
        8,
        _source("a", weight=1),
        _source("b", promptsPerRound=8),
    ),
    _sources(
        "[0].promptsPerRound",
        "must add up to algorithm.promptsPerRound (16) over all sources; they add up to 13",
        8,
        _source("a", promptsPerRound=8),
        _source("b", promptsPerRound=5),
        **{"spec.algorithm.promptsPerRound": 16},
    ),
    _sources("[0].prompts", "must name exactly one source", ABSENT, {"name": "a", "weight": 1, "prompts": {}}),
    _sources("[0].rewards[0]", "must be the name of a rule", "left", _source("a", weight=1, rewards=["left"])),
    _sources("[0].rewards", "must leave out right", ABSENT, {"name": "a", "weight": 1, "prompts": WORDS}),
    _sources(
        "[0].rewards",
        "must hold a rule with a weight other than 0",
        ["zero"],
        _source("a", weight=1, rewards=["zero"]),
        **{"spec.rewards[1]": {"name": "zero", "kind": "Math", "weight": 0}},
    ),
]
