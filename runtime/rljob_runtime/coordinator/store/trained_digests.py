"""Trained digests: what the trainer got of each response of an episode, for the audit.

They are made from the groups as they were handed to the trainer, and not from what the store holds of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rljob_runtime.audit.stored_turns import Context, trained_digest
from rljob_runtime.protocols.trajectory import Group, Response, Span, TrajectoryKey


def trained_digests(groups: Sequence[Group]) -> Mapping[TrajectoryKey, bytes]:
    """Return a digest of each response: sampled tokens, what precedes them, log-probabilities and reward.

    Its time grows with the tokens of all sequences, so the event loop must not call it.
    """
    return dict(_of_responses(groups))


def _of_responses(groups: Sequence[Group]) -> Iterator[tuple[TrajectoryKey, bytes]]:
    for group in groups:
        prompt = Context().extended(group.prompt_token_ids)
        for scored in group.responses:
            yield scored.response.key, trained_digest(_sampled(prompt, scored.response), scored.reward)


def _sampled(prompt: Context, response: Response) -> Iterable[bytes]:
    start = 0
    for sequence in response.sequences or ((Span((), len(response.token_ids)),),):
        context = prompt
        for span in sequence:
            context = context.extended(span.given)
            tokens = response.token_ids[start : start + span.sampled]
            yield context.sampled(tokens, response.logprobs[start : start + span.sampled])
            context = context.extended(tokens)
            start += span.sampled
