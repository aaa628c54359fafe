"""Parallelism planner: the tensor parallel size of the next short and of the next long round (RollPacker §4.2).

A larger size leaves more memory for KV on all accelerators together, because there are fewer copies of the weights. A
smaller size decodes more sequences a second while there is room. Preemptions show which of the two is short. The
paper's rule: more than 1.05 × the preemptions of the round before → the next larger size; none in four rounds in a row
→ the next smaller one; never across machines. Short and long rounds are decided separately, because their pressure
differs (1.79 × in the paper). Plain rounds use the size of long ones.

The rule alone would oscillate, so there are additions. A step down that brings preemptions back sets a floor, which
holds until rounds become shorter. Preemptions are not seconds: with the coordinator's predictions for other sizes, no
step goes to a slower size, a clearly faster one is chosen immediately, and a slightly faster one after some rounds.
Engines may not start in a size: the coordinator then keeps the one before, the target returns towards it, and the size
is not tried again for a while. All memory is in the status, so a restarted operator decides the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.spec import Rollout
from rljob_api.status import ParallelismHistory, PreemptionHistory, RoundKind, RoundReport, Target, TargetTensorParallel

SURGE = 1.05
"""Preemptions relative to the round before, above which a round steps up."""
QUIET_ROUNDS = 4
"""Rounds in a row without a preemption before a step down."""
RELIEF = 0.8
"""Tokens of each quiet round relative to the round that set the floor, below which the floor is removed."""

CLEARLY = 0.9
"""Predicted seconds relative to the present size, up to which another size is chosen regardless of preemptions."""
SLIGHT = 0.02
"""Share of the seconds that the fastest size must save to be chosen after `STEADY_ROUNDS` rounds. A smaller gain takes
as many times more rounds as it is smaller: 1 % is believed after eight of them. The last round's gain counts."""
STEADY_ROUNDS = 4
"""One prediction may be off by more than two sizes differ. In so many rounds the same size is seldom best by chance."""
LEAST = 0.005
"""The same below which two sizes are equally fast."""

REFUSED_ROUNDS = 32
"""Rounds after which a larger size in which engines did not start is tried again. A try costs one round without a
measurement."""


@dataclass(frozen=True)
class Choice:
    """Sizes of the next rounds, and the input of the next decision."""

    sizes: TargetTensorParallel
    history: ParallelismHistory | None
    """None for a job without a choice of sizes."""
    reasons: tuple[str, ...] = ()
    """Why sizes changed, a sentence each."""


def choose_tp(
    rollout: Rollout,
    target: Target | None,
    history: ParallelismHistory | None,
    last: RoundReport | None,
    machines: int,
    rounds: int,
    applied: int | None = None,
) -> Choice:
    """Choose the sizes after the `last` reported round, on so many `machines`.

    `rounds`: of the job. `applied`: the target's revision that the coordinator reports as applied. Each round counts
    once, by its number. A round at another size than the target's (not applied yet, or refused by engines) says nothing
    about preemptions. Rounds before a change of the number of machines do not count after it.
    """
    sizes, history = _valid_sizes(rollout, target, history, machines)
    if history is None:
        return Choice(sizes, history)
    heard, history = history.heard, _record_applied(sizes, target, history, last, applied)
    if last is None or last.round == history.round:
        return Choice(sizes, history)
    again = last.round < history.round
    history = history.model_copy(update={"round": last.round})
    kind = "short" if last.kind is RoundKind.SHORT else "long"
    size: int = getattr(sizes, kind)
    if again or last.tensor_parallel_size is None or last.preemptions is None:
        # A lower number: the run returned to a checkpoint. This round was counted, or missed, before that.
        return Choice(sizes, history)
    if last.tensor_parallel_size == size:
        chosen, learned, why = _judge(size, getattr(history, kind), last, rollout.tensor_parallel_sizes, rounds)
    elif heard is not None and last.round > heard:
        chosen, learned, why = _refused(size, getattr(history, kind), last, rollout.tensor_parallel_sizes)
    else:
        return Choice(sizes, history)
    if chosen == size:
        return Choice(sizes, history.model_copy(update={kind: learned}))
    learned = learned.model_copy(update={"faster": None, "faster_rounds": 0})
    history = history.model_copy(update={kind: learned, "heard": None})
    return Choice(sizes.model_copy(update={kind: chosen}), history, (f"{kind} rounds: TP {chosen}, {why}",))


def _record_applied(
    sizes: TargetTensorParallel,
    target: Target | None,
    history: ParallelismHistory,
    last: RoundReport | None,
    applied: int | None,
) -> ParallelismHistory:
    """Record since which round the present sizes are in force.

    The round reported with that acknowledgement may be from before it.
    """
    if target is None or target.tensor_parallel != sizes:
        return history.model_copy(update={"heard": None})
    if history.heard is not None or applied is None or applied < target.revision:
        return history
    return history.model_copy(update={"heard": last.round if last is not None else 0})


def _valid_sizes(
    rollout: Rollout, target: Target | None, history: ParallelismHistory | None, machines: int
) -> tuple[TargetTensorParallel, ParallelismHistory | None]:
    """Return sizes and history as far as the spec still agrees with them."""
    start, choices = rollout.tensor_parallel_size, rollout.tensor_parallel_sizes
    fresh = ParallelismHistory(start=start, machines=machines)
    if history is None and len(choices) > 1:
        history = fresh
    same = history is None or history.start == start
    if target is None or not same or not {target.tensor_parallel.short, target.tensor_parallel.long} <= set(choices):
        round_ = history.round if history is not None else 0
        history = fresh.model_copy(update={"round": round_}) if history is not None else None
        return TargetTensorParallel(short=start, long=start), history
    if history is not None and history.machines != machines:
        history = fresh.model_copy(update={"round": history.round})
    return target.tensor_parallel, history


def _judge(
    size: int, history: PreemptionHistory, last: RoundReport, choices: tuple[int, ...], rounds: int
) -> tuple[int, PreemptionHistory, str]:
    """Choose the size of the next round of the kind, with its history and the reason of a change."""
    preemptions, before = last.preemptions or 0, history.preemptions
    learned = _count_faster(size, history.model_copy(update={"preemptions": preemptions}), last, choices)
    if learned.faster is not None and _is_worth(learned.faster, size, learned, last, rounds):
        forgotten = {"preemptions": None, "quiet": 0, "quiet_tokens": None, "stepped_down": False}
        seconds, faster = _predicted(last), learned.faster
        why = f"{seconds[faster]:.3g} s a round predicted, {seconds[size]:.3g} s at TP {size}"
        return faster, learned.model_copy(update=forgotten), why
    if not preemptions:
        return _quiet(size, learned, last, choices)
    learned = learned.model_copy(update={"quiet": 0, "quiet_tokens": None})
    larger = _larger(size, choices)
    if before is None or preemptions <= SURGE * before or larger is None or _slower(larger, size, last):
        return size, learned, ""
    if history.ceiling is not None and larger >= history.ceiling:
        if _refused_lately(history, last):
            return size, learned, ""
        learned = learned.model_copy(update={"ceiling": None, "ceiling_round": None})
    if history.stepped_down:
        learned = learned.model_copy(update={"floor": larger, "floor_tokens": last.tokens or 0})
    learned = learned.model_copy(update={"stepped_down": False})
    return larger, learned, f"preemptions {before} → {preemptions} in round {last.round}"


def _quiet(
    size: int, history: PreemptionHistory, last: RoundReport, choices: tuple[int, ...]
) -> tuple[int, PreemptionHistory, str]:
    """Handle a round without preemptions. Every fourth in a row requests the next smaller size."""
    quiet, tokens = history.quiet + 1, max(history.quiet_tokens or 0, last.tokens or 0)
    if quiet < QUIET_ROUNDS:
        return size, history.model_copy(update={"quiet": quiet, "quiet_tokens": tokens}), ""
    learned = history.model_copy(update={"quiet": 0, "quiet_tokens": None})
    smaller = _smaller(size, choices)
    if smaller is None or _slower(smaller, size, last):
        return size, learned, ""
    if history.floor is not None and smaller < history.floor:
        if tokens >= RELIEF * (history.floor_tokens or 0):
            return size, learned, ""
        learned = learned.model_copy(update={"floor": None, "floor_tokens": None})
    why = f"no preemptions in {QUIET_ROUNDS} rounds up to round {last.round}"
    return smaller, learned.model_copy(update={"stepped_down": True}), why


def _refused(
    size: int, history: PreemptionHistory, last: RoundReport, choices: tuple[int, ...]
) -> tuple[int, PreemptionHistory, str]:
    """Handle a round that did not run at `size`: step towards the size that it ran at."""
    ran = last.tensor_parallel_size or size
    back = _smaller(size, choices) if ran < size else _larger(size, choices)
    if back is None:
        return size, history, ""
    learned = history.model_copy(
        update={"preemptions": last.preemptions, "quiet": 0, "quiet_tokens": None, "stepped_down": False}
    )
    if ran < size:
        learned = learned.model_copy(update={"ceiling": size, "ceiling_round": last.round})
    else:
        learned = learned.model_copy(update={"floor": back, "floor_tokens": last.tokens or 0})
    return back, learned, f"TP {size} was refused in round {last.round}, which ran at TP {ran}"


def _predicted(last: RoundReport) -> dict[int, float]:
    return {one.tensor_parallel_size: one.seconds for one in last.layout_forecasts or ()}


def _slower(other: int, size: int, last: RoundReport) -> bool:
    """Tell whether the round was predicted to take longer in the other size. False without a prediction."""
    seconds = _predicted(last)
    return other in seconds and size in seconds and seconds[other] >= seconds[size]


def _count_faster(
    size: int, history: PreemptionHistory, last: RoundReport, choices: tuple[int, ...]
) -> PreemptionHistory:
    """Record the size that was predicted as fastest, and in how many rounds in a row it was.

    None, if it is the present one or as fast as that. Sizes that were refused recently do not count."""
    seconds = _predicted(last)
    most = history.ceiling if history.ceiling is not None and _refused_lately(history, last) else None
    usable = [one for one in choices if one in seconds and (most is None or one < most)]
    best = min(usable, key=lambda one: (seconds[one], one), default=size)
    if best == size or size not in seconds or seconds[size] - seconds[best] < LEAST * seconds[size]:
        return history.model_copy(update={"faster": None, "faster_rounds": 0})
    before = history.faster_rounds if history.faster == best else 0
    return history.model_copy(update={"faster": best, "faster_rounds": before + 1})


def _is_worth(faster: int, size: int, history: PreemptionHistory, last: RoundReport, rounds: int) -> bool:
    """Tell whether to change to a faster size. A slight gain must repay a round: engines may have to start for it."""
    seconds = _predicted(last)
    if seconds[faster] <= CLEARLY * seconds[size]:
        return True
    saved, left = seconds[size] - seconds[faster], rounds - last.round
    needed = STEADY_ROUNDS * max(1.0, SLIGHT * seconds[size] / saved)
    return history.faster_rounds >= needed and saved * left >= seconds[size]


def _refused_lately(history: PreemptionHistory, last: RoundReport) -> bool:
    return last.round < (history.ceiling_round or 0) + REFUSED_ROUNDS


def _larger(size: int, choices: tuple[int, ...]) -> int | None:
    return next((one for one in choices if one > size), None)


def _smaller(size: int, choices: tuple[int, ...]) -> int | None:
    return next((one for one in reversed(choices) if one < size), None)
