"""Switches of a round for people: the tensor parallel sizes in a word, and a line for each switch."""

from __future__ import annotations

from rljob_api.status import LayoutSwitchReport, RoundReport, SwitchesState


def switches_summary(report: RoundReport) -> str | None:
    """Return the sizes of a round, as `TP 1→2`; None for a job without switches inside rounds."""
    switches, size = report.layout_switches, report.tensor_parallel_size
    if switches is None or size is None:
        return None
    reached = sorted({one.reached_size for one in switches.switches} - {0, size})
    return f"TP {size}→{','.join(map(str, reached))}" if reached else f"TP {size}"


def switch_lines(report: RoundReport) -> list[str]:
    """Return a line for each switch, and one for those that the report does not list."""
    if (switches := report.layout_switches) is None:
        return []
    lines = [_line(one) for one in switches.switches]
    further = (switches.made or 0) + (switches.failed or 0) - len(switches.switches)
    return lines + ([f"{further} further switches"] if further > 0 else [])


def why_not(report: RoundReport) -> str | None:
    """Return why no machine switched in a round; None if one did, or in a job without switches."""
    switches = report.layout_switches
    if switches is None or switches.state is SwitchesState.SWITCHED:
        return None
    return f"{switches.reason}: {switches.message}"


def _line(one: LayoutSwitchReport) -> str:
    how = f", {one.state}" if one.state is not None else ""
    if one.kv_bytes:
        how += f" {one.kv_bytes / 1e6:.1f} MB"
    if one.recompute_reason is not None:
        how += f" ({one.recompute_reason})"
    predicted = f" ({one.predicted_seconds:.2f} s predicted)" if one.predicted_seconds is not None else ""
    gain = one.predicted_gain_seconds
    end = f", gain {gain:.1f} s predicted" if gain is not None else ""
    if end and one.gain_seconds is not None:
        end += f", {one.gain_seconds:.1f} s measured"
    if one.reached_size != one.to_size:
        end = f", refused: it keeps TP {one.reached_size}" if one.reached_size else ", the machine was lost"
    return (
        f"{one.machine}: TP {one.from_size} → {one.to_size} at {one.at_seconds:.1f} s, {one.responses} responses{how}, "
        f"{one.seconds:.2f} s{predicted}{end}"
    )
