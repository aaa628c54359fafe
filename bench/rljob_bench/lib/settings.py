"""What a benchmark of the simulator measures: its own settings, or recorded traces as settings.

The command may ask for other engines or another number of trainers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rljob_api.rules.job import MAX_TOKENS_PER_SEQUENCE
from rljob_bench.lib.experiment import LONGEST_PROMPT, cluster_of
from rljob_runtime.cli.bench_result import OptionError
from rljob_runtime.perf_model.profile import Profile, ProfileError
from rljob_runtime.simulator.peers.assumptions import SETTINGS, Setting
from rljob_runtime.simulator.peers.engines.profiled_engines import ProfiledEngines
from rljob_runtime.workloads import Trace, TraceError, read_trace, step_file, traces_in


def settings_for(
    usual: tuple[Setting, ...],
    *,
    quick: bool,
    traces: Path | None = None,
    profile: Profile | None = None,
    trainers: int | None = None,
) -> tuple[Setting, ...]:
    """Return the `usual` settings, or only those of the profile's model; or all traces in a folder.

    Raises `TraceError`, `ProfileError` and `OptionError`.
    """
    if traces is not None:
        recorded = trace_settings(traces, profile)
        chosen = tuple(map(small, recorded)) if quick else recorded
    elif profile is not None:
        # Where none is of that model, the first one's refusal says so.
        alike = tuple(each for each in usual if profile.is_of(each.model)) or usual
        chosen = tuple(_roomy(measured(each, profile)) for each in alike)
    else:
        chosen = usual
    return chosen if trainers is None else tuple(with_trainers(each, trainers) for each in chosen)


def small(setting: Setting) -> Setting:
    """Return a smaller setting, for a quick run."""
    return replace(setting, prompts=16, responses=4)


def with_trainers(setting: Setting, accelerators: int) -> Setting:
    """With so many accelerators that only train. Raises `OptionError`."""
    try:
        return replace(setting, trainer_accelerators=accelerators)
    except ValueError as error:
        raise OptionError(f"--trainers {accelerators}: {error}") from None


def measured(setting: Setting, profile: Profile) -> Setting:
    """On the engines of a profile. Raises `ProfileError`, also where its tensor parallel size is not among them."""
    engines = ProfiledEngines.of(profile, setting.model)
    engines.at(setting.tensor_parallel)
    return replace(setting, engines=engines)


def room(setting: Setting) -> int:
    """Return the most tokens of a response after the longest prompt: both must fit an engine's KV cache, and a job."""
    return min(_kv_tokens(setting), MAX_TOKENS_PER_SEQUENCE) - LONGEST_PROMPT


def _kv_tokens(setting: Setting) -> int:
    return cluster_of(setting, colocated=True).engine().kv_tokens


def _roomy(setting: Setting) -> Setting:
    if setting.longest > room(setting):
        raise ProfileError(
            f"profile.kv_tokens[{setting.tensor_parallel}]: {_kv_tokens(setting)}; {setting.name} has responses of "
            f"{setting.longest} tokens and prompts of {LONGEST_PROMPT}, so {setting.longest + LONGEST_PROMPT} or more "
            "would be right"
        )
    return setting


def trace_settings(folder: Path, profile: Profile | None = None) -> tuple[Setting, ...]:
    """Return the trace in `folder`, or all traces in folders of it. Raises `TraceError` and `ProfileError`."""
    if not folder.is_dir():
        raise TraceError(f"{folder} is no folder; one of a trace, or one that holds folders of traces, would be right")
    return tuple(setting_of(path, profile) for path in traces_in(folder) or [folder])


def setting_of(folder: Path, profile: Profile | None = None) -> Setting:
    """Return the setting whose model has the size in the folder's name (`-7b`, `-14b`, `-32b`).

    For another name it is the setting whose responses are about as long. Raises `TraceError` where the longest response
    fits no engine of it.
    """
    trace = read_trace(folder)
    longest, step = max((one.longest, one.number) for one in trace.steps)
    base = _by_name(trace) or next((each for each in SETTINGS if longest <= each.longest), SETTINGS[-1])
    if profile is not None:
        base = measured(base, profile)
    if longest > room(base):
        raise TraceError(
            f"{step_file(folder, step)}: a response of {longest} tokens; up to {room(base)} would be right: beside a "
            f"prompt of {LONGEST_PROMPT} it must fit the KV cache of {base.model.name} with tensor parallel size "
            f"{base.tensor_parallel} ({_kv_tokens(base)} tokens), and a sequence has {MAX_TOKENS_PER_SEQUENCE} at most"
        )
    return replace(
        base,
        name=trace.task,
        workload=str(folder.resolve()),
        longest=longest,
        source=f"lengths of {trace.task}; the layout of {base.name}",
    )


def _by_name(trace: Trace) -> Setting | None:
    parts = trace.task.lower().split("-")
    return next((each for each in SETTINGS if each.name.partition("-")[0] in parts), None)
