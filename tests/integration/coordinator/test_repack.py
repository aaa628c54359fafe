"""Repack in a whole job: three replicas, each with long responses among short ones, which move together.

With the reference engine in this process, and with vLLM in processes of their own."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import pytest
import torch

from rljob_api.status import FinishedOutcome
from rljob_bench.lib.recorded_peers import Aborted, Hop, Loaded, Move, Submitted, Told, moves
from rljob_runtime.audit import audit
from rljob_runtime.protocols import Delta, EngineStats, GenerateRequest
from rljob_runtime.protocols.trajectory import Group, Lease, Response, TrajectoryKey
from tests.support.repack_job import LONG, PROMPTS, RESPONSES, SHORT, UPDATES, Played, is_greedy, play_job
from tests.support.rows import slow

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

TOLERANCE = 1e-5
"""Of logprobs in fp32, over a context of 700 tokens."""


TRIES = 4
"""Who is in its tail together with others is up to the machine's pace: a job of a busy one may have nothing to show."""


@pytest.fixture(scope="module", params=["Reference", *slow("VLLM")])
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    for _ in range(TRIES):
        found = play_job(request.param, tmp_path_factory.mktemp(request.param.lower()))
        if fresh(found) and any(is_greedy(hop.key) for _, hop in hops(found)):
            break
    return found


def hops(played: Played) -> list[tuple[Move, Hop]]:
    """The moves that were made."""
    return [(move, hop) for move in moves(played.history) for hop in move.made]


def fresh(played: Played) -> int:
    """Released replicas that took newer weights and prompts while what had left them ran on."""
    ended = {
        delta.key: event.ended
        for event in played.history
        if isinstance(event, Told)
        for delta in event.report.deltas
        if delta.finish_reason is not None
    }
    found = 0
    for move in (move for move in moves(played.history) if move.made):
        assert move.released is not None
        while_it_ran = [
            event
            for event in played.history
            if not isinstance(event, Told)
            and event.replica == move.source
            and move.released <= event.began < max(ended[hop.key] for hop in move.made)
        ]
        newer = {e.version for e in while_it_ran if isinstance(e, Loaded) and e.version > move.version}
        drawn = {
            one.weight_version
            for e in while_it_ran
            if isinstance(e, Submitted)
            for one in e.requests
            if not one.prefix_token_ids
        }
        found += bool(newer & drawn)
    return found


def by_response(played: Played) -> dict[TrajectoryKey, list[tuple[Move, Hop]]]:
    """The moves of each response that moved, in their order."""
    found: dict[TrajectoryKey, list[tuple[Move, Hop]]] = defaultdict(list)
    for move, hop in hops(played):
        found[hop.key].append((move, hop))
    return found


def trained(played: Played) -> dict[TrajectoryKey, tuple[Group, Response]]:
    return {one.response.key: (group, one.response) for group in played.groups for one in group.responses}


def told(played: Played) -> dict[tuple[TrajectoryKey, Lease], list[Delta]]:
    """What each replica said of each response, by lease."""
    said: dict[tuple[TrajectoryKey, Lease], list[Delta]] = defaultdict(list)
    for event in played.history:
        if isinstance(event, Told):
            for delta in event.report.deltas:
                said[delta.key, Lease(event.replica, delta.attempt)].append(delta)
    return said


def tokens_of(deltas: list[Delta]) -> list[tuple[int, float]]:
    return [pair for delta in deltas for pair in zip(delta.token_ids, delta.logprobs, strict=True)]


def last_stats(played: Played) -> dict[str, EngineStats]:
    return {event.replica: event.report.stats for event in played.history if isinstance(event, Told)}


def submitted(played: Played) -> list[tuple[str, GenerateRequest]]:
    return [(e.replica, one) for e in played.history if isinstance(e, Submitted) for one in e.requests]


def test_long_responses_move_and_nothing_is_lost_or_trained_on_twice(played: Played) -> None:
    assert played.finished is not None, "a machine was lost"
    assert played.finished.outcome is FinishedOutcome.COMPLETE, played.finished.message
    made = hops(played)
    assert made, "of replicas in their tails one at least is emptied; how many depends on the machine's pace"
    assert sum(report.moved_responses or 0 for report in played.reports) == len(made)

    responses = [one.response for group in played.groups for one in group.responses]
    assert len(responses) == len({one.key for one in responses}) == UPDATES * PROMPTS * RESPONSES
    assert Counter(len(one.token_ids) for one in responses) == {
        LONG: UPDATES * PROMPTS,
        SHORT: UPDATES * PROMPTS * (RESPONSES - 1),
    }
    verdict = audit(played.store)
    assert [str(finding) for finding in verdict.findings] == []
    assert (verdict.trajectories, verdict.lost, verdict.duplicated) == (len(responses), 0, 0)


def test_a_response_that_moved_is_of_one_version_and_goes_on_where_it_was(played: Played) -> None:
    said, responses = told(played), trained(played)
    for key, its in by_response(played).items():
        _, response = responses[key]
        whole = list(zip(response.token_ids, response.logprobs, strict=True))
        leases = [its[0][1].source, *(hop.destination for _, hop in its)]
        ends = [0, *(hop.offset for _, hop in its), LONG]
        for lease, (start, end) in zip(leases, pairwise(ends), strict=True):
            deltas = said[key, lease]
            assert {delta.weight_version for delta in deltas} <= {response.weight_version}
            assert [delta.offset for delta in deltas[:1]] in ([start], [])
            for one, then in pairwise(deltas):
                assert then.offset == one.offset + len(one.token_ids), "no gap, nothing twice"
            made = tokens_of(deltas)[: end - start]
            assert [token for token, _ in made] == [token for token, _ in whole[start:end]]
            assert [logprob for _, logprob in made] == pytest.approx([one for _, one in whole[start:end]], abs=1e-6)
        assert {move.version for move, _ in its} == {response.weight_version}
        assert its[0][1].offset >= SHORT // 2, "what was made of it went along"


def test_a_moved_response_has_the_tokens_and_logprobs_of_one_that_stayed(played: Played) -> None:
    responses, greedy = trained(played), 0
    for version in {move.version for move, _ in hops(played)}:
        model = played.model(version)
        for key in {hop.key for move, hop in hops(played) if move.version == version}:
            group, response = responses[key]
            logprobs = _logprobs(model, group.prompt_token_ids, response.token_ids)
            tokens = torch.tensor(list(response.token_ids))
            chosen = logprobs.gather(-1, tokens[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(list(response.logprobs)), chosen.float(), atol=TOLERANCE, rtol=0.0)
            if is_greedy(key):
                # A response that stays takes the likeliest token each time: so does this, but where two are as likely.
                greedy += 1
                assert (logprobs.max(-1).values - chosen).max() <= TOLERANCE
                for other in (one.response for one in group.responses if one.response.key != key):
                    both = min(len(response.token_ids), len(other.token_ids))
                    assert list(response.token_ids)[:both] == list(other.token_ids)[:both]
    assert greedy, "none of them was greedy: a test without force"
    # The source, which goes on until the abort reaches it, made the same tokens as the destination.
    hopped = {(hop.key, hop.source): hop.offset for _, hop in hops(played)}
    for (key, lease), tokens in _in_vain(played).items():
        if is_greedy(key) and (key, lease) in hopped:
            offset = hopped[key, lease]
            same = list(responses[key][1].token_ids)[offset : offset + len(tokens)]
            assert tokens[: len(same)] == same


@torch.inference_mode()
def _logprobs(model: torch.nn.Module, prompt: tuple[int, ...], tokens: object) -> torch.Tensor:
    """Of every token at every place of the response, at temperature 1."""
    ids = torch.tensor([[*prompt, *tokens]])  # type: ignore[misc]
    return model(ids).logits[0, len(prompt) - 1 : -1].double().log_softmax(-1)


def test_the_receiver_computes_the_prefix_once_and_every_token_is_counted(played: Played) -> None:
    prompts: Counter[str] = Counter()
    for replica, request in submitted(played):
        prompts[replica] += len(request.prompt_token_ids) + len(request.prefix_token_ids)
    asked = Counter((replica, request.key, request.attempt) for replica, request in submitted(played))
    for _, hop in hops(played):
        assert asked[hop.destination.replica, hop.key, hop.destination.attempt] == 1
    made = sum(len(tokens_of(deltas)) for deltas in told(played).values())
    for replica, stats in last_stats(played).items():
        assert stats.prompt_tokens_total == prompts[replica], "nothing else was computed, nothing twice"
        assert stats.preemptions_total == 0
        assert (stats.running, stats.waiting) == (0, 0)
    generated = sum(stats.generated_tokens_total for stats in last_stats(played).values())
    assert generated == made
    # All that was made in vain is what sources made while their responses were on the way.
    kept = sum(len(response.token_ids) for _, response in trained(played).values())
    assert kept + sum(len(tokens) for tokens in _in_vain(played).values()) == generated


def _in_vain(played: Played) -> dict[tuple[TrajectoryKey, Lease], list[int]]:
    """By response and lease: what came after the place from which another replica went on."""
    ends = {(hop.key, hop.source): hop.offset for _, hop in hops(played)}
    nowhere = [hop for move in moves(played.history) for hop in move.hops if hop.first is None]
    ends |= {(hop.key, hop.destination): hop.offset for hop in nowhere}
    found = {}
    for lease, end in ends.items():
        deltas = told(played)[lease]
        start = deltas[0].offset if deltas else end
        found[lease] = [token for token, _ in tokens_of(deltas)[end - start :]]
    return found


def polls_after(played: Played, hop: Hop, time: float) -> int:
    """How often the source told of the response after that."""
    return sum(
        delta.key == hop.key and delta.attempt == hop.source.attempt
        for event in played.history
        if isinstance(event, Told) and event.replica == hop.source.replica and event.ended > time
        for delta in event.report.deltas
    )


def test_the_source_is_released_and_goes_on_with_new_weights_and_prompts(played: Played) -> None:
    for move in moves(played.history):
        for hop in move.made:
            assert hop.first is not None
            aborts = [
                event
                for event in played.history
                if isinstance(event, Aborted)
                and event.replica == move.source
                and event.attempts.get(hop.key) == hop.source.attempt
            ]
            assert aborts[0].began >= hop.first, "the source goes on until the destination's first token is there"
            assert aborts[0].ended is not None
            assert polls_after(played, hop, aborts[0].ended) <= 2, "what it had made before is told, and no more"
    assert fresh(played), "no released replica took newer weights and prompts while what had left it ran on"
    loads = Counter(event.replica for event in played.history if isinstance(event, Loaded))
    counted = {replica: stats.weight_loads_total for replica, stats in last_stats(played).items()}
    # What is there already, since a newer version had taken the place of the one asked for, is not loaded again.
    assert all(1 <= counted[replica] <= loads[replica] for replica in counted)
    assert sum(counted.values()) > len(counted), "engines have loaded newer weights"
