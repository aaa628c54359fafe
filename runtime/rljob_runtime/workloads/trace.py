"""Trace: a folder of PolyTrace files as steps of prompts.

Files are identified by name: `packed_lengths_step_N.jsonl` (with optional `reward_timings_step_N.jsonl` and
`dapo_filter_indices.jsonl`) or `multiturn_workload_step_N.jsonl`. Validation rows are excluded: they are not training.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from rljob_runtime.workloads.errors import Findings, TraceError
from rljob_runtime.workloads.rows import FilterRow, LengthsRow, MultiTurnRow, RewardTimingRow, read_rows
from rljob_runtime.workloads.workload import Prompt, Response, ToolCall, Turn

FILTER_FILE = "dapo_filter_indices.jsonl"
_STEP_FILE = re.compile(r"(packed_lengths|reward_timings|multiturn_workload)_step_(\d+)\.jsonl")


@dataclass(frozen=True)
class Step:
    """A recorded step; prompts may differ in their number of responses."""

    number: int
    prompts: tuple[Prompt, ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest response."""
        return max(response.output_tokens for prompt in self.prompts for response in prompt.responses)


@dataclass(frozen=True)
class Trace:
    """All steps of a folder in memory, by number."""

    task: str
    steps: tuple[Step, ...]
    findings: Findings = field(default_factory=Findings, compare=False)

    def responses(self) -> Iterator[Response]:
        return (response for step in self.steps for prompt in step.prompts for response in prompt.responses)

    def tool_calls(self) -> Iterator[ToolCall]:
        return (call for response in self.responses() for turn in response.turns for call in turn.calls)

    def pooled(self) -> Trace:
        """Return all prompts as one step, for drawing from few and similar steps."""
        prompts = tuple(prompt for step in self.steps for prompt in step.prompts)
        return Trace(self.task, (Step(0, prompts),), self.findings)


def read_trace(folder: Path, findings: Findings | None = None) -> Trace:
    """Read the complete trace in `folder`; its name is the task. Raises `TraceError`."""
    findings = findings or Findings()
    return Trace(folder.resolve().name, tuple(read_steps(folder, findings)), findings)


def read_steps(folder: Path, findings: Findings) -> Iterator[Step]:
    """Yield the steps in `folder`, in order.

    Raises `TraceError` for a folder without a usable step, and for an invalid row unless `findings` skips it."""
    files = _Files.of(folder)
    kept = _read_filter(files, findings)
    for number in sorted(set(files.rewards) - set(files.lengths)):
        findings.notes.append(f"{files.rewards[number].name} has no lengths beside it")
    usable = 0
    for number, path in sorted((files.lengths or files.turns).items()):
        if files.lengths:
            seconds = _read_rewards(files.rewards[number], number, findings) if number in files.rewards else {}
            prompts = _read_lengths(path, number, seconds, kept.get(number), findings)
        else:
            prompts = _read_multi_turn(path, number, findings)
        if prompts:
            usable += 1
            yield Step(number, prompts)
        else:
            findings.notes.append(f"{path.name} has no training rows that can be used")
    if not usable:
        raise TraceError(f"{folder}: no step has a row that can be used")


@dataclass(frozen=True)
class _Files:
    lengths: dict[int, Path]
    rewards: dict[int, Path]
    turns: dict[int, Path]
    filter: Path | None

    @classmethod
    def of(cls, folder: Path) -> _Files:
        if not folder.is_dir():
            raise TraceError(f"{folder} is no folder; a folder of packed_lengths_step_N.jsonl files would be right")
        found: dict[str, dict[int, Path]] = {"packed_lengths": {}, "reward_timings": {}, "multiturn_workload": {}}
        for path in sorted(folder.iterdir()):
            if match := _STEP_FILE.fullmatch(path.name):
                kind, number = found[match[1]], int(match[2])
                if number in kind:
                    raise TraceError(f"{path} and {kind[number].name} are the same step")
                kind[number] = path
        if found["packed_lengths"] and found["multiturn_workload"]:
            raise TraceError(f"{folder} holds single-turn and multi-turn files; one workload a folder would be right")
        if not found["packed_lengths"] and not found["multiturn_workload"]:
            raise TraceError(f"{folder} holds no trace: {_advice(folder)}")
        filter_file = folder / FILTER_FILE
        return cls(
            lengths=found["packed_lengths"],
            rewards=found["reward_timings"],
            turns=found["multiturn_workload"],
            filter=filter_file if filter_file.exists() else None,
        )


def lengths_file(number: int) -> str:
    """Return the name of the file with a step's lengths, of responses with one turn."""
    return f"packed_lengths_step_{number}.jsonl"


def holds_step(folder: Path) -> bool:
    """Whether a folder holds the file of a step."""
    return any(_STEP_FILE.fullmatch(path.name) for path in folder.iterdir())


def step_file(folder: Path, number: int) -> Path:
    """Return the file with a step's lengths. Raises `TraceError` if the folder is no trace."""
    files = _Files.of(folder)
    return (files.lengths or files.turns)[number]


def traces_in(folder: Path) -> list[Path]:
    """Return the subfolders with steps, by name."""
    return sorted({path.parent for path in folder.glob("*/*_step_*.jsonl") if _STEP_FILE.fullmatch(path.name)})


def _advice(folder: Path) -> str:
    if inside := traces_in(folder):
        return f"its folders do; one of {', '.join(path.name for path in inside)} would be right"
    return "packed_lengths_step_N.jsonl or multiturn_workload_step_N.jsonl files would be right"


@dataclass(frozen=True)
class _Filter:
    """A step's row of the filter file."""

    path: Path
    line: int
    row: FilterRow

    def mark(self, prompts: list[Prompt], rows: int, findings: Findings) -> tuple[Prompt, ...]:
        """Mark each prompt as kept or not.

        `rows`: training rows of the step, invalid ones included, which bounds the indices."""
        if rows != self.row.prompt_count:
            reason = (
                f"field prompt_count is {self.row.prompt_count}: {rows}, as the step has training rows, would be right"
            )
            findings.refuse(self.path, self.line, reason)
            return tuple(prompts)
        kept = set(self.row.kept_prompt_indices)
        return tuple(replace(prompt, kept=prompt.index in kept) for prompt in prompts)


def _read_filter(files: _Files, findings: Findings) -> dict[int, _Filter]:
    filters: dict[int, _Filter] = {}
    if files.filter is None:
        return filters
    for line, row in read_rows(files.filter, FilterRow, findings):
        if row.workload_step in filters:
            findings.refuse(files.filter, line, f"workload_step {row.workload_step} was there before")
        elif row.workload_step in files.lengths:
            filters[row.workload_step] = _Filter(files.filter, line, row)
        else:
            findings.notes.append(f"{files.filter.name}:{line}: step {row.workload_step} is not in the folder")
    return filters


def _read_rewards(path: Path, number: int, findings: Findings) -> dict[int, float]:
    """Return seconds per response of a data-parallel rank: its share of the batch's wall time."""
    seconds: dict[int, float] = {}
    for line, row in read_rows(path, RewardTimingRow, findings):
        if row.validation:
            continue
        if row.step != number:
            findings.refuse(path, line, _wrong_step(row.step, number))
        elif row.dp_rank in seconds:
            findings.refuse(path, line, f"dp_rank {row.dp_rank} was there before")
        else:
            seconds[row.dp_rank] = row.reward_time_s / row.batch_size
    return seconds


def _read_lengths(
    path: Path, number: int, seconds: dict[int, float], kept: _Filter | None, findings: Findings
) -> tuple[Prompt, ...]:
    prompts: list[Prompt] = []
    places: set[tuple[int, int]] = set()
    bad_before = len(findings.bad)

    def rows() -> int:
        """Training rows so far, unusable ones included, as a filter's indices count them."""
        return len(prompts) + len(findings.bad) - bad_before

    for line, row in read_rows(path, LengthsRow, findings):
        if row.validation:
            continue
        place = (row.dp_rank, row.local_index)
        if row.step != number:
            findings.refuse(path, line, _wrong_step(row.step, number))
        elif place in places:
            findings.refuse(path, line, f"dp_rank {place[0]}, local_index {place[1]} was there before")
        else:
            places.add(place)
            responses = tuple(Response((Turn(_generated(tokens)),), seconds.get(row.dp_rank)) for tokens in row.output)
            prompts.append(Prompt(rows(), row.input, responses))
    return tuple(prompts) if kept is None else kept.mark(prompts, rows(), findings)


def _read_multi_turn(path: Path, number: int, findings: Findings) -> tuple[Prompt, ...]:
    lengths: dict[int, int] = {}
    groups: dict[int, dict[int, Response]] = {}
    for line, row in read_rows(path, MultiTurnRow, findings):
        if row.validation:
            continue
        identity, length = row.prompt_group_id, lengths.get(row.prompt_group_id, row.prompt_len)
        group = groups.get(identity, {})
        if row.step != number:
            findings.refuse(path, line, _wrong_step(row.step, number))
        elif row.prompt_len != length:
            reason = f"field prompt_len is {row.prompt_len}: {length}, as in the rest of its group, would be right"
            findings.refuse(path, line, reason)
        elif row.sample_id in group:
            reason = f"prompt_group_id {identity}, sample_id {row.sample_id} was there before"
            findings.refuse(path, line, reason)
        else:
            lengths[identity] = length
            groups[identity] = {**group, row.sample_id: _response(row)}
    return tuple(
        Prompt(identity, lengths[identity], tuple(group[sample] for sample in sorted(group)))
        for identity, group in sorted(groups.items())
    )


def _wrong_step(found: int, number: int) -> str:
    return f"field step is {found}: {number}, as the file's name says, would be right"


def _response(row: MultiTurnRow) -> Response:
    calls: dict[int, list[ToolCall]] = {}
    for call in row.tool_calls:
        calls.setdefault(call.turn, []).append(ToolCall(call.latency_s, call.append_len))
    return Response(
        tuple(Turn(_generated(turn.completion_tokens), tuple(calls.get(turn.turn, ()))) for turn in row.turns)
    )


def _generated(tokens: int) -> int:
    """Return generated tokens. An engine that stops immediately still generates the end token, which recorders omit."""
    return max(1, tokens)
