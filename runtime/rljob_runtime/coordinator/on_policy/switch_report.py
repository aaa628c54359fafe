"""Switch report: which machines switched their tensor parallel size inside a round, or why none did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rljob_api.status import LayoutSwitchesReport, LayoutSwitchReport, RecomputedResponses, SwitchesState
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome
from rljob_runtime.scheduling.layouts.fleet_layout import NO_SWITCHES, SwitchCount
from rljob_runtime.scheduling.layouts.layout_switch import LayoutSwitch

MOST_LISTED = 16
"""Switches that a report lists: the status has a limited size."""

FAILED = "Failed"
"""Every switch of the round failed."""
NOT_CHECKED = "NotChecked"
"""No look was due in the round."""

_WHY = {
    SwitchOutcome.POLICY_FAILED: "the policy failed by an error of its own; the coordinator's log has the traceback",
    SwitchOutcome.CHANGED: "a switch was decided, but its machine had changed before it began",
    SwitchOutcome.LATER: "a switch was predicted to save {gain} of {without}, and more a little later",
    SwitchOutcome.TRAINING_BOUND: (
        "a switch was predicted to end generation {gain} of {without} earlier, but the trainer would process complete "
        "groups until later anyway"
    ),
    SwitchOutcome.NO_GAIN: (
        "the best switch was predicted to save {gain} of {without}: not minGain, or not clearly more than it costs"
    ),
    SwitchOutcome.KV_CACHE_FULL: (
        "the unfinished responses would not fit the KV caches of another size, or could not run there together "
        "(maxConcurrentRequests)"
    ),
    SwitchOutcome.NOT_PREDICTED: (
        "nothing could be predicted: the speed of this size, or of every other one, was not observed yet; machines "
        "measure other sizes during updates that are long enough, and a round that begins in another size observes it"
    ),
    SwitchOutcome.MAX_SWITCHES: "the machine had switched maxSwitches times",
    SwitchOutcome.WAITING: (
        "whenever machines were looked at, responses waited for a launch, or in an engine while no other size would "
        "run all of them"
    ),
    SwitchOutcome.ONE_SIZE: "the engines of every other size are refused on this machine",
    SwitchOutcome.IDLE: "nothing ran on the machines that were looked at",
}
"""A sentence for each outcome; a test compares the keys with the policy's."""
_LOSS = "with the best switch the rest of the round was predicted to take {gain} longer than the {without} without it"
"""The sentence of a gain below 0."""


def switches_report(
    switches: Sequence[LayoutSwitch], decision: SwitchDecision | None, before: SwitchCount = NO_SWITCHES
) -> LayoutSwitchesReport:
    """Return the report of a round with these switches. `decision`: the most telling one, None without a look.

    `before`: those under former coordinators of the round, of which nothing but their number is known."""
    ended = [one for one in switches if one.reached is not None]
    count = sum((one.count for one in switches), before)
    reason, message = (None, None) if count.made else _why_not(count, decision)
    return LayoutSwitchesReport(
        state=SwitchesState.SWITCHED if count.made else SwitchesState.NOT_SWITCHED,
        reason=reason,
        message=message,
        made=count.made,
        failed=count.failed,
        responses=sum(len(one.responses) for one in ended),
        seconds=round(sum(one.total_seconds for one in ended), 3),
        kv_bytes=sum(one.moved_bytes for one in ended),
        recomputed=_recomputed(ended),
        **_gains(ended),
        switches=tuple(_listed(one) for one in ended[:MOST_LISTED]),
    )


def _why_not(count: SwitchCount, decision: SwitchDecision | None) -> tuple[str, str]:
    if count.failed:
        return FAILED, "machines that switched refused the size, or were lost"
    if decision is None:
        return NOT_CHECKED, "the round ended before machines were looked at"
    if decision.outcome is SwitchOutcome.SWITCHED:
        return NOT_CHECKED, "the round ended before the switch that was decided"
    why, gain, without = _WHY[decision.outcome], decision.gain, _seconds(decision.without)
    if decision.outcome is SwitchOutcome.NO_GAIN and gain is not None and gain < 0:
        why, gain = _LOSS, -gain
    return decision.outcome.value, why.format(gain=_seconds(gain), without=without)


def _recomputed(switches: Sequence[LayoutSwitch]) -> tuple[RecomputedResponses, ...]:
    counts = sum((one.recomputed for one in switches), Counter[str]())
    return tuple(RecomputedResponses(reason=reason, responses=counts[reason]) for reason in sorted(counts))


def _most_refused(switch: LayoutSwitch) -> str | None:
    most = switch.recomputed.most_common(1)
    return most[0][0] if most else None


def _gains(switches: Sequence[LayoutSwitch]) -> dict[str, float | None]:
    """Return the predicted and the measured gain of the switches for which both are known."""
    both = [(predicted_gain(one), measured_gain(one)) for one in switches]
    known = [(told, measured) for told, measured in both if told is not None and measured is not None]
    if not known:
        return {"predicted_gain_seconds": None, "gain_seconds": None}
    return {
        "predicted_gain_seconds": _rounded(sum(told for told, _ in known)),
        "gain_seconds": _rounded(sum(measured for _, measured in known)),
    }


def _listed(one: LayoutSwitch) -> LayoutSwitchReport:
    decision = one.decision
    return LayoutSwitchReport(
        machine=one.machine,
        at_seconds=round(one.at, 3),
        from_size=one.start,
        to_size=one.target,
        reached_size=one.reached or 0,
        responses=len(one.responses),
        state=one.state.value if one.state is not None else None,
        recompute_reason=_most_refused(one),
        kv_bytes=one.moved_bytes,
        predicted_seconds=_rounded(_predicted(decision)),
        seconds=round(one.total_seconds, 3),
        predicted_gain_seconds=_rounded(predicted_gain(one)),
        gain_seconds=_rounded(measured_gain(one)),
    )


def _predicted(decision: SwitchDecision | None) -> float | None:
    return None if decision is None or decision.seconds is None else decision.seconds + decision.unpaid


def predicted_gain(switch: LayoutSwitch) -> float | None:
    """Return the seconds by which this round was predicted to have its responses earlier; None if not predicted.

    >>> decision = SwitchDecision(SwitchOutcome.SWITCHED, 2, seconds=4.0, gain=3.0, without=10.0, unpaid_in_round=21.0)
    >>> predicted_gain(LayoutSwitch("rollout-0", 1, 2, decision))
    -18.0
    """
    decision = switch.decision
    return None if decision is None or decision.gain is None else decision.gain - decision.unpaid_in_round


def measured_gain(switch: LayoutSwitch) -> float | None:
    """Return by how many seconds the responses of a switch were done earlier than predicted without it.

    None if the size was not reached, nothing was predicted, none of them made a token, or one of them went elsewhere.

    >>> decision = SwitchDecision(SwitchOutcome.SWITCHED, 2, gain=3.0, without=10.0)
    >>> measured_gain(LayoutSwitch("rollout-0", 1, 2, decision, at=5.0, reached=2, last_token=12.5))
    2.5
    """
    without = switch.decision.without if switch.decision is not None else None
    if not switch.succeeded or switch.scattered or without is None or switch.last_token is None:
        return None
    return switch.at + without - switch.last_token


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _seconds(seconds: float | None) -> str:
    return "nothing" if seconds is None else f"{seconds:.2f} s"
