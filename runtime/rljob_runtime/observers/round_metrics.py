"""Round metrics: a finished round as numbers by name, for observers and TensorBoard."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from hashlib import blake2b

from rljob_api.status import EnvironmentMetric, RoundReport
from rljob_runtime.protocols import TrainReport

_REFUSED = re.compile(r"[^A-Za-z0-9_.-]")
DIGEST_BYTES = 3

OF_TRAINING = {"entropy", "reference_kl", "mismatch_kl", "clip_fraction_low", "clip_fraction_high"}
"""Fields that the report of a round repeats of its update, for the status. Their metrics are `train/…` only."""


def round_metrics(report: RoundReport, trained: TrainReport) -> dict[str, float]:
    """Return the numbers of a round.

    `round/…` is of the job, `train/…` of the update, `reward/…` by rule, `source_…` by source, and of a job with
    environments `episodes/…`, and `environment/NAME/…` as the environment reports it. Names that people or programs
    choose are `spelled`."""
    values = {
        **{f"round/{name}": value for name, value in report.model_dump(exclude={"round", *OF_TRAINING}).items()},
        **{f"train/{name}": value for name, value in asdict(trained).items() if name != "step"},
        **{f"train/{spelled(name)}": value for name, value in trained.metrics.items()},
    }
    for rule in report.reward_rules or ():
        values |= {f"reward/{rule.name}": rule.mean, f"reward/{rule.name}_deviation": rule.deviation}
    for source in report.sources or ():
        values |= {f"source_prompts/{source.name}": source.prompts, f"source_reward/{source.name}": source.reward}
    if (switches := report.layout_switches) is not None:
        values |= {f"round/layout_switches_{name}": value for name, value in switches.model_dump().items()}
    if (episodes := report.episodes) is not None:
        values |= {f"episodes/{name}": value for name, value in episodes.model_dump().items()}
        values |= {f"episodes/failed/{spelled(one.part)}": one.attempts for one in episodes.failed_attempts or ()}
        values |= _measured(episodes.metrics or ())
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def _measured(metrics: Iterable[EnvironmentMetric]) -> dict[str, float]:
    """Return what environments measured, by names of which no two are alike, also without their case."""
    found: dict[str, tuple[str, float]] = {}
    # Names that are spelled as they are keep that spelling.
    for one in sorted(metrics, key=lambda one: (one.name != spelled(one.name), one.environment, one.name)):
        name = f"environment/{one.environment}/{spelled(one.name)}"
        if name.lower() in found:
            name += f"_{blake2b(one.name.encode(), digest_size=DIGEST_BYTES).hexdigest()}"
        found[name.lower()] = name, one.mean
    return dict(found.values())


def spelled(name: str) -> str:
    """Return a metric's name as every observer takes it: letters, digits, `_`, `.` and `-`.

    One that its server refuses would take the other metrics of the round along. A slash makes a folder, beside which
    there may be no file of that name.

    >>> spelled("acc@1"), spelled("exact match"), spelled("a/b"), spelled("..")
    ('acc_1', 'exact_match', 'a_b', '_')
    """
    return _REFUSED.sub("_", name).strip(".") or "_"
