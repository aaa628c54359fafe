"""Gateway bounds: what the gateway of a job holds at a time, and the memory that this needs.

They follow from the episodes that the job may have open. Operator and runtime share this module: one gives the
container its memory, the other fills it. A container with less memory gets smaller bounds, so that requests wait and no
process is killed.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from rljob_api.spec import RLJobSpec
from rljob_api.spec.environments import EpisodeLimits
from rljob_api.spec.training import AUTO, Mode

MIB = 1 << 20

REQUESTS_OF_ATTEMPT = 64
"""Requests of an attempt that are under way or wait: its agent decides how many it sends."""
REQUESTS_OF_EPISODE = 4
"""Requests that an open episode has under way at a time, as a mean of all episodes."""
BODY_BYTES_OF_TOKEN = 5
"""Bytes of a body for each token of its conversation."""
TOKEN_BYTES, TURN_BYTES, ATTEMPT_BYTES = 4, 512, 2048
"""What the history of an attempt takes: for each token, for each turn besides its tokens, and once."""

PROCESS_BYTES = 640 * MIB
"""The process with its tokenizer and the processes of its text, what runners send and lease, and histories that are
being read."""
COPIES = 7
"""Times that a body is in memory: as bytes in the gateway, in a frame of the link and in its buffer, and as text, whose
characters may have four bytes each."""
WAITING_BYTES = 256 << 10
"""Buffers of a connection whose request waits, in the process and in the kernel."""

FEWEST_REQUESTS, MOST_REQUESTS = 4096, 65_536
LEAST_BODIES, MOST_BODIES = 128 * MIB, 1024 * MIB
LEAST_HISTORIES, MOST_HISTORIES = 128 * MIB, 8192 * MIB
"""Between these a bound follows from the job."""

LARGEST_AUTO_FACTOR = Fraction(3, 2)
"""Largest factor of tail batching that `Auto` chooses."""
MOST_UPDATES_OPEN = 4
"""Groups that mode Asynchronous has open without `maxPrompts`, as a multiple of an update."""

CONTAINER_STEP, LEAST_CONTAINER = 256 * MIB, 2048 * MIB


@dataclass(frozen=True)
class GatewayBounds:
    """Bounds of what a gateway holds at a time.

    `requests`: requests under way; as many more may wait. `body_bytes`: their bodies and answers. `history_bytes`: the
    answered turns of attempts, which are read from the coordinator once they are dropped.
    """

    requests: int = REQUESTS_OF_ATTEMPT
    body_bytes: int = LEAST_BODIES
    history_bytes: int = LEAST_HISTORIES

    @property
    def memory(self) -> int:
        """Return the bytes that a process with these bounds takes at most."""
        return PROCESS_BYTES + COPIES * self.body_bytes + self.history_bytes + WAITING_BYTES * self.requests

    @property
    def connections(self) -> int:
        """Return the connections at a time: of requests, of as many that wait, and idle ones."""
        return 2 * self.requests + FEWEST_REQUESTS

    @property
    def calls(self) -> int:
        """Return the calls of the coordinator at a time: turns, those of a gateway before this one, and of runners."""
        return 2 * self.requests + FEWEST_REQUESTS

    def within(self, memory: int) -> GatewayBounds:
        """Return the bounds for a container with so many bytes: these, or smaller ones.

        What exceeds the smallest bounds shrinks by the same share. Below `SMALLEST.memory` the smallest remain.
        """
        more = self.memory - SMALLEST.memory
        if memory >= self.memory or more <= 0:
            return self
        share = Fraction(max(0, memory - SMALLEST.memory), more)
        return GatewayBounds(
            _between(SMALLEST.requests, self.requests, share),
            _between(SMALLEST.body_bytes, self.body_bytes, share),
            _between(SMALLEST.history_bytes, self.history_bytes, share),
        )


SMALLEST = GatewayBounds(REQUESTS_OF_ATTEMPT, 16 * MIB, 8 * MIB)
"""What every gateway has: the longest body, and all requests of one attempt."""


def bounds_of(spec: RLJobSpec) -> GatewayBounds:
    """Return the bounds that a job needs. More open episodes never lower one."""
    episodes = open_episodes(spec)
    tokens = _most_tokens(spec)
    requests = _clamped(REQUESTS_OF_EPISODE * episodes, FEWEST_REQUESTS, MOST_REQUESTS)
    history = ATTEMPT_BYTES + TURN_BYTES * _most_turns(spec) + TOKEN_BYTES * tokens
    return GatewayBounds(
        # A few episodes cannot have more requests than their agents may send.
        requests=min(requests, REQUESTS_OF_ATTEMPT * max(1, episodes)),
        body_bytes=_clamped(BODY_BYTES_OF_TOKEN * tokens * episodes, LEAST_BODIES, MOST_BODIES),
        history_bytes=_clamped(history * episodes, LEAST_HISTORIES, MOST_HISTORIES),
    )


def container_bytes(spec: RLJobSpec) -> int:
    """Return the memory limit of the gateway's container."""
    return max(LEAST_CONTAINER, CONTAINER_STEP * ceil(Fraction(bounds_of(spec).memory, CONTAINER_STEP)))


def open_episodes(spec: RLJobSpec) -> int:
    """Return the most episodes that may ask for turns at a time: those that are launched, and that runners can have."""
    places = sum(one.most_runners * one.episodes_per_runner for one in spec.environments)
    evaluated = sum(one.max_prompts * one.responses_per_prompt for one in spec.evaluation)
    return min(places, _of_training(spec) + evaluated)


def _of_training(spec: RLJobSpec) -> int:
    """Return the responses of training that are open at a time."""
    prompts, responses = spec.algorithm.prompts_per_round, spec.algorithm.responses_per_prompt
    if spec.mode is Mode.ASYNCHRONOUS:
        return (spec.experience.max_prompts or MOST_UPDATES_OPEN * prompts) * responses
    tail = spec.tail_batching
    if tail.enabled is False:
        return prompts * responses
    return ceil(_factor(tail.prompt_factor) * prompts) * ceil(_factor(tail.response_factor) * responses)


def _factor(given: float | str) -> Fraction:
    return LARGEST_AUTO_FACTOR if given == AUTO else Fraction(repr(float(given)))


def _most_tokens(spec: RLJobSpec) -> int:
    limits = spec.episode or EpisodeLimits()
    return limits.max_tokens or spec.data.max_prompt_tokens + spec.data.max_response_tokens


def _most_turns(spec: RLJobSpec) -> int:
    turns = max((one.max_turns for one in spec.environments), default=1)
    limits = spec.episode or EpisodeLimits()
    return min(turns, limits.max_turns or turns)


def _clamped(value: int, least: int, most: int) -> int:
    return max(least, min(value, most))


def _between(least: int, most: int, share: Fraction) -> int:
    """Return a bound with this share of what exceeds `least`. One that is smaller already stays."""
    return most if most <= least else least + int((most - least) * share)
