"""Gateway: the way of a request from its body to its answer, without HTTP.

A request becomes tokens, the tokens a turn of the coordinator, and the stored turn an answer. What costs as much as the
client sends (parsing, rendering, encoding, writing) runs in threads, so that one agent delays no other. A turn that is
asked for is finished and stored, whether its client still waits or not: a retry receives it.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from rljob_api.gateway_bounds import LEAST_HISTORIES
from rljob_api.keys.signed_text import Refusal
from rljob_runtime.gateway import own_share
from rljob_runtime.gateway.answers import (
    Answer,
    AnsweredTurn,
    chat_answer,
    conversation_answer,
    cut_at_stop,
    generate_answer,
    models_answer,
    named_calls,
)
from rljob_runtime.gateway.capability import Capability
from rljob_runtime.gateway.errors import GatewayError, bad
from rljob_runtime.gateway.histories import ContextLimit, Histories
from rljob_runtime.gateway.link.frames import TOKEN
from rljob_runtime.gateway.paths import Paths
from rljob_runtime.gateway.text.turn_text import ReplyText, TurnText, TurnTokens
from rljob_runtime.gateway.wire.chat_request import ChatRequest, parse_chat_request
from rljob_runtime.gateway.wire.fields import canonical, digest, parse_body
from rljob_runtime.gateway.wire.generate_request import GenerateTokens, parse_generate_request
from rljob_runtime.gateway.wire.messages import assistant_message, chain
from rljob_runtime.gateway.wire.repeats import MOST_REQUESTS, Repeats
from rljob_runtime.protocols.trajectory import FinishReason
from rljob_runtime.protocols.turns import (
    COORDINATOR_AWAY,
    AttemptEnded,
    EpisodeAttempt,
    RecordedTurn,
    RequestNumber,
    StoredTurn,
    TurnBounds,
    TurnCall,
    TurnRefused,
    Turns,
    numbered,
)
from rljob_runtime.scheduling.backoff import Backoff

log = logging.getLogger(__name__)
CHAT, GENERATE = "/v1/chat/completions", "/inference/v1/generate"

T = TypeVar("T")


@dataclass(frozen=True)
class GatewaySettings:
    """What the gateway knows of a job, and its bounds."""

    model: str
    context: int
    """Tokens of the longest sequence."""
    vocabulary: int
    max_tokens: int
    """The job's bound of one turn."""
    history_bytes: int = LEAST_HISTORIES
    """The paths of attempts that are kept here."""
    remembered: int = MOST_REQUESTS
    """Different requests without a retry header that are remembered."""
    backoff: Backoff = field(default_factory=lambda: Backoff(0.2, 2.0, 5.0))
    """Delays between calls of a coordinator that is away."""


@dataclass
class GatewayStats:
    """Totals of a gateway."""

    turns: int = 0
    """Turns that were answered."""
    forks: int = 0
    """Those of them that opened a branch beside an existing one."""
    retries_served: int = 0
    """Requests that received a turn that was stored before."""
    rewritten: int = 0
    """Conversations whose last answer is not one of this gateway: the client changed what it said."""
    rerendered: int = 0
    """Conversations that a template could not go on with."""
    reencoded_tokens: int = 0
    """Sampled tokens that a continued prompt had in another form. They are 0, or a template is not what it seemed."""
    malformed_calls: int = 0
    """Attempts of the model at tool calls that are none, and answers that cannot be read."""
    calls_again: int = 0
    """Calls of the coordinator that were sent again."""
    refused: int = 0
    """Requests that were answered with an error."""


@dataclass(frozen=True)
class _Prompt:
    """A chat request as tokens, with what `GatewayStats` counts of it."""

    request: ChatRequest
    digest: str
    tokens: Sequence[int]
    rewritten: bool = False
    rerendered: bool = False
    reencoded_tokens: int = 0


class Gateway:
    """The turns of all open attempts. `now`: seconds of the epoch; `sleep`: of the same clock."""

    def __init__(
        self,
        turns: Turns,
        text: TurnText,
        settings: GatewaySettings,
        executor: Executor,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.stats = GatewayStats()
        self._turns = turns
        self._text = text
        self._settings = settings
        self._executor = executor
        self._now = now
        self._sleep = sleep
        self.histories = Histories(settings.history_bytes, self._read_paths)
        self.context_limit = ContextLimit()
        self.repeats = Repeats(settings.remembered)
        self._work: set[asyncio.Task[Answer]] = set()
        self._conversations: set[EpisodeAttempt] = set()
        """Attempts whose conversations are read: that costs the store more than a turn, and any program may ask."""

    async def chat(
        self, capability: Capability, body: bytes, retry: bool = True, number: RequestNumber | None = None
    ) -> Answer:
        """Answer a chat request. `retry`, `number`: see `Asked`.

        Raises `GatewayError`.
        """
        return await self._to_the_end(self._chat(capability, body, retry, number))

    async def generate(
        self, capability: Capability, body: bytes, retry: bool = True, number: RequestNumber | None = None
    ) -> Answer:
        """Answer a request for tokens; see `chat`."""
        return await self._to_the_end(self._generate(capability, body, retry, number))

    async def conversation(self, capability: Capability) -> Answer:
        """Return the messages of an attempt's last answer, with it; null if no turn was asked by messages.

        Raises `GatewayError`.
        """
        return await self._to_the_end(self._conversation(capability))

    def models(self) -> Answer:
        """Return the served model."""
        return models_answer(self._settings.model, self._settings.context)

    async def close(self) -> None:
        """End the work on all requests. Their turns are the coordinator's."""
        tasks = list(self._work)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self.histories.close(), return_exceptions=True)

    async def _to_the_end(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Wait for the work. It goes on if the client leaves."""
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Answer]) -> None:
        self._work.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        self.stats.refused += 1
        if not isinstance(error, GatewayError):
            log.error("the work on a request ended by an unforeseen error", exc_info=error)

    async def _chat(self, capability: Capability, body: bytes, retry: bool, number: RequestNumber | None) -> Answer:
        prompt = await self._in_thread(partial(self._prompt, await self.histories.of(capability), body))
        request = prompt.request
        self.stats.rewritten += prompt.rewritten
        self.stats.rerendered += prompt.rerendered
        self.stats.reencoded_tokens += prompt.reencoded_tokens
        bounds = self._bounds(capability.episode, len(prompt.tokens), request.max_tokens, request.stop)
        call = TurnCall(
            episode=capability.episode,
            digest=prompt.digest,
            retry=retry,
            token_ids=prompt.tokens,
            bounds=bounds,
            body=body,
            deadline=capability.expires,
            reencoded_tokens=prompt.reencoded_tokens,
        )
        turn = await self._turn(call, number)
        answered = AnsweredTurn(capability.episode, self._settings.model, prompt.tokens, turn)
        paths = self.histories.kept(capability.episode)

        def answer() -> tuple[Answer, int]:
            reply = self._said(request, prompt.tokens, turn)
            if paths is not None:
                self._keep(paths, request, prompt.tokens, turn, reply)
            return chat_answer(request, answered, reply), reply.malformed

        written, malformed = await self._in_thread(answer)
        self.histories.measure(capability.episode)
        self.stats.malformed_calls += malformed
        return written

    async def _generate(self, capability: Capability, body: bytes, retry: bool, number: RequestNumber | None) -> Answer:
        def parse() -> tuple[GenerateTokens, str]:
            given = parse_body(body)
            return parse_generate_request(given, self._settings.vocabulary), digest(GENERATE, given)

        request, identity = await self._in_thread(parse)
        self._check_model(request.model)
        prompt = len(request.token_ids)
        bounds = self._bounds(capability.episode, prompt, request.max_tokens, request.stop, request.stop_token_ids)
        call = TurnCall(capability.episode, identity, retry, request.token_ids, bounds, body, capability.expires)
        turn = await self._turn(call, number)
        answered = AnsweredTurn(capability.episode, self._settings.model, request.token_ids, turn)
        return await self._in_thread(lambda: generate_answer(request, answered))

    async def _conversation(self, capability: Capability) -> Answer:
        episode = capability.episode
        if episode in self._conversations:
            raise GatewayError(429, "too_many_requests", "the conversation of an attempt is read once at a time")
        self._conversations.add(episode)
        try:
            stored = await self._asked(capability, lambda: self._turns.history(episode, newest=True))
            return await self._in_thread(lambda: self._told(episode, stored[-1] if stored else None))
        finally:
            self._conversations.discard(episode)

    def _told(self, episode: EpisodeAttempt, newest: StoredTurn | None) -> Answer:
        """Return the conversation of a turn, as its client sent it and received its answer."""
        given = parse_body(newest.body) if newest is not None else {}
        if newest is None or "messages" not in given:
            return conversation_answer(None)
        request = parse_chat_request(given)
        answered = AnsweredTurn(episode, self._settings.model, newest.token_ids, newest.turn)
        return conversation_answer((given["messages"], answered, self._said(request, newest.token_ids, newest.turn)))

    def _prompt(self, paths: Paths, body: bytes) -> _Prompt:
        """Return a chat request as tokens: those of its deepest known turn, and of the messages after it."""
        given = parse_body(body)
        request = parse_chat_request(given)
        self._check_model(request.model)
        known = paths.deepest(chain(request.tools, request.messages))
        covered = known.messages if known else 0
        new = request.messages[covered:]
        following = self._text.following(known.turn, new, request.tools) if known else None
        changed = _changed(known.turn, following) if known and following is not None else 0
        goes_on = following is not None and not changed
        tokens = following if following is not None and goes_on else self._text.first(request.messages, request.tools)
        return _Prompt(
            request,
            digest(CHAT, given),
            # A list would take ten times as much, until the turn is answered.
            array(TOKEN, tokens),
            rewritten=any(message["role"] == "assistant" for message in new),
            rerendered=known is not None and not goes_on,
            reencoded_tokens=changed,
        )

    def _keep(
        self, paths: Paths, request: ChatRequest, prompt: Sequence[int], turn: RecordedTurn, reply: ReplyText
    ) -> None:
        """Keep an answered turn, which says `reply`, for the requests that go on from it."""
        message = assistant_message(reply.content, named_calls(turn, reply.calls), reply.reasoning)
        conversation = chain(request.tools, [*request.messages, message])
        tokens = TurnTokens(prompt, turn.token_ids)
        paths.add(conversation[-1], tokens, paths.deepest(conversation[:-1]))

    def _said(self, request: ChatRequest, prompt: Sequence[int], turn: RecordedTurn) -> ReplyText:
        """Return what a turn says to its client."""
        # A turn that was cut at its bound has no call: what it would have become is not known.
        calls = request.calls_allowed and turn.finish_reason is FinishReason.STOP
        return cut_at_stop(self._reply(TurnTokens(prompt, turn.token_ids), request, calls), turn, request.stop)

    def _reply(self, tokens: TurnTokens, request: ChatRequest, calls: bool) -> ReplyText:
        """Return what a turn says. One that cannot be read says nothing: an error would be the answer to each retry."""
        try:
            reply = self._text.reply(tokens, request.tools, calls)
            canonical(asdict(reply))
            return reply
        except Exception as error:  # a model may write what no tokenizer or renderer takes
            log.warning("an answer of %d tokens cannot be read: %r", len(tokens.sampled), error)
            return ReplyText("", malformed=1)

    async def _read_paths(self, capability: Capability) -> Paths:
        """Read the turns of an attempt that this process does not have."""
        stored = await self._asked(capability, lambda: self._turns.history(capability.episode))
        return await self._in_thread(lambda: self._rebuilt(stored))

    def _rebuilt(self, stored: Sequence[StoredTurn]) -> Paths:
        paths = Paths()
        for one in stored:
            given = parse_body(one.body)
            if "messages" in given:  # a request for tokens has no conversation
                request = parse_chat_request(given)
                self._keep(paths, request, one.token_ids, one.turn, self._said(request, one.token_ids, one.turn))
        return paths

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self._settings.model:
            text = f"the model {model[:100]!r} is not served here; {self._settings.model!r} is"
            raise GatewayError(404, "model_not_found", text, "model")

    def _bounds(
        self,
        episode: EpisodeAttempt,
        prompt: int,
        max_tokens: int | None,
        stop: tuple[str, ...],
        stop_token_ids: tuple[int, ...] = (),
    ) -> TurnBounds:
        """Return the bounds of a turn: the least of the job's, the client's and what the context leaves."""
        room = self._settings.context - prompt
        if room < 1:
            self.context_limit.refuse(episode)
            text = (
                f"This model's maximum context length is {self._settings.context} tokens, "
                f"and the request has {prompt}. Shorten the messages."
            )
            raise bad(text, "messages", "context_length_exceeded")
        self.context_limit.forget(episode)
        return TurnBounds(min(room, self._settings.max_tokens, max_tokens or room), stop, stop_token_ids)

    async def _turn(self, call: TurnCall, number: RequestNumber | None) -> RecordedTurn:
        """Return the stored turn. Raises `GatewayError`."""
        own = call if number is None else replace(call, digest=numbered(call.digest, number))
        calls = 0

        def ask() -> Awaitable[RecordedTurn]:
            nonlocal calls
            calls += 1
            # The turn may have been stored although its answer was lost.
            return self._turns.turn(own if calls == 1 else replace(own, retry=True))

        turn = await self._asked(Capability(call.episode, int(call.deadline)), ask)
        self.stats.turns += not turn.replayed
        self.stats.forks += turn.forked and not turn.replayed
        self.stats.retries_served += turn.replayed
        return turn

    async def _asked(self, capability: Capability, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the coordinator until it answers or the attempt's time is over. It may load weights, or be replaced."""
        failures = 0
        while (left := capability.expires - self._now()) > 0:
            try:
                async with asyncio.timeout(left):
                    return await ask()
            except COORDINATOR_AWAY:
                failures += 1
                self.stats.calls_again += 1
                with own_share.waiting():
                    await self._sleep(min(left, self._settings.backoff.delay(failures) or left))
            except TimeoutError:
                break
            except AttemptEnded as error:
                self.histories.forget(capability.episode)
                self.repeats.forget(capability.episode)
                raise GatewayError(403, "attempt_ended", str(error)) from error
            except TurnRefused as error:
                raise bad(str(error), code="episode_limit_reached") from error
        raise GatewayError(401, "invalid_api_key", str(Refusal.EXPIRED))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _changed(turn: TurnTokens, tokens: Sequence[int]) -> int:
    """Return how many of a turn's tokens a prompt that continues it has in another form, or not at all."""
    own = [*turn.prompt, *turn.sampled]
    return sum(a != b for a, b in zip(tokens, own, strict=False)) + max(0, len(own) - len(tokens))
