"""Switches in a round's report: which machines changed their tensor parallel size inside the round, or why none did."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.fields import Count, Sentence, StatusModel


class SwitchesState(StrEnum):
    """The outcome of a round for switches of tensor parallel sizes inside it."""

    SWITCHED = "Switched"
    NOT_SWITCHED = "NotSwitched"


class LayoutSwitchReport(StatusModel):
    """One switch of one machine."""

    machine: Annotated[str, Field(max_length=63)]
    """The machine."""
    at_seconds: Annotated[float, Field(ge=0)]
    """Seconds from the start of generation to the start of the switch."""
    from_size: Annotated[int, Field(ge=1)]
    """Tensor parallel size before it."""
    to_size: Annotated[int, Field(ge=1)]
    """Size that it was made for."""
    reached_size: Count
    """Size after it: fromSize if the engines refused toSize, 0 if the machine was lost."""
    responses: Count
    """Unfinished responses that were carried over."""
    state: Annotated[str | None, Field(max_length=16)] = None
    """How they were carried over. Migrate: the new engines took keys and values of at least one. Recompute: of none."""
    recompute_reason: Annotated[str | None, Field(max_length=16)] = None
    """Why keys and values that should have moved were computed again, for most of these responses: see recomputed of
    the round. Absent if none should have moved, or all did."""
    kv_bytes: Count | None = None
    """Bytes of keys and values that the new engines took."""
    predicted_seconds: Annotated[float | None, Field(ge=0)] = None
    """Prediction of `seconds`. It includes a build of engines that the machine did not have."""
    seconds: Annotated[float, Field(ge=0)]
    """From the stop of its responses until each of them has a new token."""
    predicted_gain_seconds: float | None = None
    """Seconds by which the machine was predicted to end its responses earlier. Below 0 if it first builds engines
    that later rounds use, too."""
    gain_seconds: float | None = None
    """Seconds by which the machine ended the carried responses earlier than was predicted without this switch. Later
    switches of the machine count in it, too. Absent if one of them ended elsewhere."""


class RecomputedResponses(StatusModel):
    """Responses whose keys and values should have moved in a switch, and were computed again."""

    reason: Annotated[str, Field(max_length=16)]
    """Unsupported: the engine moves none. NoFullBlock: the responses are too short. NoRoom: shared memory is short.
    NotWritten: the file could not be written. Dropping: an earlier file was still being removed. Missing, Damaged,
    Foreign, Version, Shape, Tokens: the file was not the one of these responses, weights and engines."""
    responses: Count
    """Their number."""


class LayoutSwitchesReport(StatusModel):
    """The switches of one round (adaptiveTensorParallel)."""

    state: SwitchesState
    """Switched: at least one machine reached another size. Otherwise NotSwitched."""
    reason: Annotated[str | None, Field(max_length=64)] = None
    """Why no machine switched, the most informative reason of the round: NoGain, Later, TrainingBound, KVCacheFull,
    NotPredicted, MaxSwitches, Waiting, OneSize, Idle, Changed, Failed, NotChecked or PolicyFailed (an error, see
    warnings). Absent with Switched."""
    message: Sentence | None = None
    """The reason as a sentence."""
    made: Count | None = None
    """Switches that reached their size."""
    failed: Count | None = None
    """Switches that did not: the engines refused the size, or the machine was lost."""
    responses: Count | None = None
    """Unfinished responses that were carried over by all of them."""
    seconds: Annotated[float | None, Field(ge=0)] = None
    """Seconds of all of them together."""
    kv_bytes: Count | None = None
    """Bytes of keys and values that the new engines of all of them took."""
    recomputed: Annotated[tuple[RecomputedResponses, ...], Field(max_length=16)] = ()
    """Responses whose keys and values should have moved and did not, by reason."""
    predicted_gain_seconds: float | None = None
    """Sum of predictedGainSeconds of the switches that have gainSeconds, too."""
    gain_seconds: float | None = None
    """Sum of gainSeconds of these switches. Over many rounds it should be near predictedGainSeconds."""
    switches: Annotated[tuple[LayoutSwitchReport, ...], Field(max_length=16)] = ()
    """The first 16 of them, in order."""
