"""Episode: the state machine of one attempt of a trajectory of many turns.

    open(request) → Generate → commit(tokens) … → complete, or abort

The harness owns the loop: it decides what it asks and when it ends. The episode owns tokens, versions and limits. A
request attaches to the tree by its tokens (`tree`). Its new tokens become a given node, and the answer a sampled node
below it. Concurrent requests are siblings. A retry opens no turn. A limit refuses new turns, and open ones may still
be committed. The end drops open turns, and late results after it change nothing.

Nothing here reads a clock: every method that depends on time receives it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from rljob_runtime.protocols.trajectory import FinishReason
from rljob_runtime.protocols.turns import unnumbered
from rljob_runtime.scheduling.episodes.counts import EpisodeStats
from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState, EpisodeEnd
from rljob_runtime.scheduling.episodes.limits import Limit, Limits
from rljob_runtime.scheduling.episodes.node import ROOT, Node, NodeKind
from rljob_runtime.scheduling.episodes.rerun import MadeTurn, Rerun
from rljob_runtime.scheduling.episodes.resumption import Recovery
from rljob_runtime.scheduling.episodes.tree import Attachment, TokenTree, extended
from rljob_runtime.scheduling.episodes.turns import (
    Decision,
    Diverged,
    Generate,
    InProgress,
    Recorded,
    Refused,
    Turn,
    TurnRequest,
    may_answer,
)


class Versions(StrEnum):
    """The weight versions that may generate the turns of one episode. One version always generates a turn."""

    MIXED = "Mixed"
    """Each turn has its own."""
    SINGLE = "Single"
    """All turns have that of the first one."""


@dataclass(frozen=True)
class EpisodeRules:
    """What bounds the episodes of a job."""

    limits: Limits = field(default_factory=Limits)
    versions: Versions = Versions.MIXED
    recovery: Recovery | None = None
    """How another runner goes on with an attempt. None: an attempt ends with its runner."""
    overtime: float = 30.0
    """Seconds after an attempt's deadline in which its runner scores and reports it."""

    @property
    def of_evaluation(self) -> EpisodeRules:
        """The rules of an evaluation's episodes. An evaluation measures the weights of its step, and no others."""
        return replace(self, versions=Versions.SINGLE)


@dataclass(frozen=True)
class _OpenTurn:
    turn: Turn
    path: hashlib.blake2b = field(repr=False)
    is_branch: bool
    """Whether the turn alone makes a branch, so that the branch ends with it."""


class Episode:
    """One attempt of an episode. `started`: from when its time limit counts (`times.limit_start`).

    `stored`: its committed nodes, of a former process. That process may have used ids up to `last_id` for turns that it
    did not store. They are not used again, so that a late result of such a turn is not taken for that of another.
    """

    def __init__(self, rules: EpisodeRules, started: float, stored: Iterable[Node] = (), last_id: int = ROOT) -> None:
        self.rules = rules
        self.started = started
        self.stats = EpisodeStats()
        self.end: EpisodeEnd | None = None
        self.truncated_by: Limit | None = None
        """The limit that refuses new turns."""
        self._open: dict[int, _OpenTurn] = {}
        self._open_below: dict[int, int] = {}
        """Open turns by their parent."""
        self._turns: dict[str, list[int]] = {}
        """The turns of all equal requests, by the digest without a number, in the order in which they were opened."""
        self._unstored: set[int] = set()
        """Given nodes that no commit has returned."""
        self._version: int | None = None
        """The version of all turns; None for several versions, and before the first turn."""
        self._tree = TokenTree.of(stored)
        self._last_id = max(last_id, *self._tree.nodes, ROOT)
        self._rerun: Rerun | None = None
        self._restore()

    # --- questions ---

    @property
    def nodes(self) -> Mapping[int, Node]:
        """Committed sampled nodes, and given nodes also of open turns, by id."""
        return self._tree.nodes

    @property
    def tree(self) -> TokenTree:
        """The tree of these nodes."""
        return self._tree

    @property
    def open_turns(self) -> list[Turn]:
        """Turns that are neither committed nor dropped, in the order in which they were opened."""
        return [one.turn for one in self._open.values()]

    @property
    def sampled(self) -> list[Node]:
        """The committed turns, in the order in which they were opened."""
        return [self.nodes[one] for one in sorted(self.nodes) if self.nodes[one].is_sampled]

    def siblings_before(self, turn: Turn) -> int:
        """Return the number of turns that were opened before this one and have the same prompt."""
        committed = [one.id for one in self.nodes.values() if one.is_sampled and one.parent == turn.parent]
        opened = [one.turn.id for one in self._open.values() if one.turn.parent == turn.parent]
        return sum(one < turn.id for one in (*committed, *opened))

    @property
    def oldest_version(self) -> int | None:
        """The oldest version that generated a turn, from which staleness counts; None without a turn."""
        return min((node.version for node in self.nodes.values() if node.version is not None), default=None)

    @property
    def newest_version(self) -> int | None:
        """The newest version that generated a turn; None without a turn. Later turns have no older one."""
        return max((node.version for node in self.nodes.values() if node.version is not None), default=None)

    @property
    def deadline(self) -> float | None:
        """The time from which no turn opens; None without a limit."""
        return None if self.rules.limits.seconds is None else self.started + self.rules.limits.seconds

    @property
    def unrepeated(self) -> tuple[int, ...]:
        """The turns that a program which runs again has not asked for again, in the order of their opening."""
        return () if self._rerun is None else self._rerun.left

    # --- turns ---

    def run_again(self, cause: AbortCause, repeated: Collection[int] = ()) -> None:
        """Let the program of the attempt run again from its beginning: each turn is given to it once more.

        `cause`: of the attempt's end, if the program becomes another one. `repeated`: turns that it has repeated.
        """
        turns: list[Node | Turn] = [*self.sampled, *self.open_turns]
        left = (
            MadeTurn(one.id, one.digest, self._sampled_above(one.parent)) for one in turns if one.id not in repeated
        )
        self._rerun = Rerun(left, cause)

    def open(self, request: TurnRequest, now: float, version: int | None = None) -> Decision:
        """Decide about a request.

        `version`: the weights that would generate it, which `Versions.SINGLE` needs to know. A retry gets the former
        turn, whatever limit was reached since. Raises `ValueError` for a request without tokens.
        """
        if request.retry and (former := self._former(request.digest)) is not None:
            self.stats.retries += 1
            return former
        if (repeated := self._repeated(request.digest)) is not None:
            return repeated
        if self.end is not None:
            return Refused(f"the episode has ended: {self.end.state}")
        if not len(request.token_ids):
            raise ValueError("a request has no tokens")
        place = self._tree.attach(request.token_ids)
        if self._rerun is not None and (missed := self._rerun.misses(self._sampled_above(place.node))) is not None:
            return Diverged(f"its program ran again, and asks for something else than turn {missed}")
        if self.truncated_by is None:
            self.truncated_by = self.rules.limits.reached(turns=self.stats.turns, seconds=now - self.started)
        return self._refusal() or self._open_turn(request, place, now, version)

    def commit(
        self,
        turn: int,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        version: int,
        finish: FinishReason,
    ) -> tuple[Node, ...]:
        """Commit an engine's answer; return the nodes to store, parents first.

        A late result returns none. Raises `ValueError`, with nothing changed, for an answer that cannot be trained on.
        """
        found = self._open.get(turn)
        if found is None:
            self.stats.late += 1
            return ()
        self._check(found.turn, token_ids, logprobs, version)
        node = Node(
            turn, found.turn.parent, NodeKind.SAMPLED, token_ids, logprobs, version, found.turn.digest, finish
        )  # fmt: skip
        self._tree.add(node, extended(found.path, token_ids))
        self._close(turn)
        self.stats.sampled_tokens += len(token_ids)
        limit = self.rules.limits.tokens
        if finish is FinishReason.LENGTH and limit is not None and self.stats.tokens >= limit:
            self.truncated_by = self.truncated_by or Limit.TOKENS
        return (*self._take_unstored(node.parent), node)

    def drop(self, turn: int) -> None:
        """Give up an open turn without an answer. A retry of its request opens another."""
        if (found := self._open.get(turn)) is None:
            return
        self._close(turn)
        self.stats.turns -= 1
        self.stats.forks -= found.is_branch
        self._turns[unnumbered(found.turn.digest)[0]].remove(turn)
        if self._rerun is not None:
            self._rerun.forget(turn)

    # --- ends ---

    def reach(self, limit: Limit, seconds: float) -> bool:
        """Believe a harness that a limit ended it, if that can be; return whether it can. Harnesses are foreign code.

        `seconds`: those that it has had. A limit that was reached before stays the reason.
        """
        if not self.rules.limits.may_end(limit, turns=self.stats.turns, seconds=seconds):
            return False
        self.truncated_by = self.truncated_by or limit
        return True

    def complete(self, detail: str = "") -> EpisodeEnd:
        """End the attempt as its environment says; return its end. `detail`: what the environment says of it.

        It is truncated if a limit was reached, and aborted if the model was never called, or if its program ran again
        and did not ask for all turns again.
        """
        if self.unrepeated:
            return self.diverge(f"its program ran again, and did not ask for turn {self.unrepeated[0]} again")
        if not self.sampled:
            refused = f", after the limit of {self.truncated_by} was reached" if self.truncated_by else ""
            return self.abort(AbortCause.NO_TURN, f"the agent ended without an answer of the model{refused}")
        if self.truncated_by is not None:
            return self._end(EpisodeEnd(EndState.TRUNCATED, limit=self.truncated_by, detail=detail))
        return self._end(EpisodeEnd(EndState.COMPLETED))

    def abort(self, cause: AbortCause, detail: str = "") -> EpisodeEnd:
        """End the attempt because of a failure of ours; return its end. The first end counts."""
        return self._end(EpisodeEnd(EndState.ABORTED, cause=cause, detail=detail))

    def diverge(self, reason: str) -> EpisodeEnd:
        """End the attempt because its program, which ran again, has become another one; return its end."""
        assert self._rerun is not None
        return self.abort(self._rerun.cause, reason)

    # --- inside ---

    def _restore(self) -> None:
        """Derive the state from the stored nodes."""
        for node in (self.nodes[one] for one in sorted(self.nodes)):
            if node.is_sampled:
                self.stats.turns += 1
                self.stats.sampled_tokens += len(node.token_ids)
                self._turns.setdefault(unnumbered(node.digest)[0], []).append(node.id)
                if self.rules.versions is Versions.SINGLE:
                    self._version = node.version
            else:
                self.stats.given_tokens += len(node.token_ids)
        parents = (ROOT, *self.nodes)
        self.stats.forks = sum(max(0, self._tree.children(one) - 1) for one in parents)

    def _former(self, digest: str) -> Decision | None:
        """Return the decision about a retry: the newest turn that may answer it, None if there is none.

        A program that runs again sends a request again only for a turn that it has asked for itself.
        """
        left = self.unrepeated
        request, asked = unnumbered(digest)
        for turn in reversed(self._turns.get(request, ())):
            made = self._open[turn].turn if turn in self._open else self.nodes.get(turn)
            if made is None or turn in left:
                continue
            if may_answer(unnumbered(made.digest)[1], asked, runs_again=self._rerun is not None):
                return self._known(turn)
        return None

    def _known(self, turn: int, repeated: bool = False) -> Decision | None:
        """Return the decision about a turn that was opened before; None if it was never committed."""
        if turn in self._open:
            return InProgress(self._open[turn].turn, repeated)
        node = self.nodes.get(turn)
        return None if node is None else Recorded(node, repeated)

    def _repeated(self, digest: str) -> Decision | None:
        """Return the decision about a request that a program which runs again repeats; None of another one."""
        if self.end is not None or self._rerun is None or (turn := self._rerun.repeat(digest)) is None:
            return None
        return self._known(turn, repeated=True)

    def _sampled_above(self, node: int) -> int:
        """Return the deepest sampled node of a path that ends at this node; `ROOT` without one."""
        while node != ROOT and not self.nodes[node].is_sampled:
            node = self.nodes[node].parent
        return node

    def _refusal(self) -> Refused | None:
        if self.truncated_by is None:
            return None
        return Refused(f"the episode's limit of {self.truncated_by} was reached", self.truncated_by)

    def _open_turn(self, request: TurnRequest, place: Attachment, now: float, version: int | None) -> Decision:
        is_fork = bool(self._tree.children(place.node) or self._open_below.get(place.node))
        forks = self.stats.forks + is_fork
        tokens, limit = self.stats.tokens + len(place.tail), self.rules.limits.tokens
        self.truncated_by = self.rules.limits.exceeded(tokens=tokens + 1, forks=forks)
        if (refused := self._refusal()) is not None:
            return refused
        version = self._version_of_turn(version)
        turn = Turn(
            parent=self._add_given(place),
            id=self._next_id(),
            digest=request.digest,
            prompt_tokens=place.tokens,
            opened=now,
            most_tokens=None if limit is None else limit - tokens,
            version=version,
        )
        self.stats.turns, self.stats.forks = self.stats.turns + 1, forks
        self._open[turn.id] = _OpenTurn(turn, place.path, is_branch=is_fork and not len(place.tail))
        self._open_below[turn.parent] = self._open_below.get(turn.parent, 0) + 1
        self._turns.setdefault(unnumbered(request.digest)[0], []).append(turn.id)
        return Generate(turn)

    def _add_given(self, place: Attachment) -> int:
        """Add the tokens that are new in a request, if any; return the node whose path is the request."""
        if not len(place.tail):
            return place.node
        given = Node(self._next_id(), place.node, NodeKind.GIVEN, place.tail)
        self._tree.add(given, place.path)
        self._unstored.add(given.id)
        self.stats.given_tokens += len(place.tail)
        return given.id

    def _version_of_turn(self, offered: int | None) -> int | None:
        """Return the version that a turn must have."""
        if self.rules.versions is Versions.MIXED:
            return offered
        if self._version is None:
            if offered is None:
                raise ValueError("versions: Single needs the version that would generate the first turn")
            self._version = offered
        return self._version

    def _check(self, turn: Turn, token_ids: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        """Raise `ValueError` for an answer that cannot be trained on."""
        if not len(token_ids) or len(token_ids) != len(logprobs):
            raise ValueError(
                f"turn {turn.id} has {len(token_ids)} tokens and {len(logprobs)} logprobs; it must have one logprob a "
                "token, and at least one token"
            )
        if not all(map(math.isfinite, logprobs)):
            raise ValueError(f"turn {turn.id} has logprobs that are not finite")
        if turn.version not in (None, version):
            raise ValueError(f"turn {turn.id} was generated by version {version}; {turn.version} would be right")
        if turn.most_tokens is not None and len(token_ids) > turn.most_tokens:
            raise ValueError(f"turn {turn.id} has {len(token_ids)} tokens; {turn.most_tokens} are allowed")

    def _close(self, turn: int) -> None:
        parent = self._open.pop(turn).turn.parent
        self._open_below[parent] -= 1

    def _take_unstored(self, node: int) -> tuple[Node, ...]:
        """Return the given nodes up to this one that no commit has returned, parents first."""
        found: list[Node] = []
        while node in self._unstored:
            self._unstored.discard(node)
            found.append(self.nodes[node])
            node = found[-1].parent
        return tuple(found[::-1])

    def _end(self, end: EpisodeEnd) -> EpisodeEnd:
        if self.end is None:
            self.end = end
            self._open.clear()
            self._open_below.clear()
        return self.end

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id
