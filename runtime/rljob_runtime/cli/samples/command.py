"""`rljob samples JOB|FOLDER`: what the model answered, in the terminal, as JSON, or as one page of HTML."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from rljob_runtime.cli.cluster import NoAnswer
from rljob_runtime.cli.files import Unusable, fail
from rljob_runtime.cli.samples.episode import episode_facts, episode_parts
from rljob_runtime.cli.samples.source import FolderSource, SampleSource
from rljob_runtime.cli.screen import say, screen
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.samples import Sample, SampleOutcome, TornFile
from rljob_runtime.samples.page import page
from rljob_runtime.samples.visible import visible

STYLES = {
    SampleOutcome.TRAINED: "green",
    SampleOutcome.EVALUATED: "blue",
    SampleOutcome.FILTERED: "yellow",
    SampleOutcome.REQUEUED: "cyan",
    SampleOutcome.ABORTED: "cyan",
    SampleOutcome.FAILED: "red",
}
USED = (SampleOutcome.TRAINED, SampleOutcome.EVALUATED)
DEFAULT_COUNT = 8
"""Samples that the terminal shows."""


@dataclass(frozen=True)
class Order:
    """Which samples, and in which order."""

    best: bool = False
    worst: bool = False
    filtered: bool = False
    source: str | None = None
    """The prompt source; None for all."""

    def __call__(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return the samples that are asked for.

        `best` and `worst` leave out those without a reward, `filtered` those that were trained on or evaluated."""
        found = [one for one in self.of_source(samples) if not (self.filtered and one.outcome in USED)]
        if self.best or self.worst:
            found = [one for one in found if one.reward is not None]
            found.sort(key=lambda one: one.reward or 0.0, reverse=self.best)
        return found

    def of_source(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the samples of the source."""
        return (one for one in samples if self.source is None or source_of(one) == self.source)


def source_of(sample: Sample) -> str:
    """Return the name of the source of a sample's prompt; "" in a job without named sources."""
    return PromptKey.parse(sample.prompt_id).source


def samples(
    job: Annotated[str, typer.Argument(help="The folder of a local run, or the name of an RLJob in a cluster.")],
    number: Annotated[int | None, typer.Option("--round", help="The round. Default: the newest with samples.")] = None,
    best: Annotated[bool, typer.Option("--best", help="Highest reward first.")] = False,
    worst: Annotated[bool, typer.Option("--worst", help="Lowest reward first.")] = False,
    filtered: Annotated[
        bool, typer.Option("--filtered", help="Only what was not trained on, with the reason.")
    ] = False,
    of_source: Annotated[
        str | None, typer.Option("--source", help="Only prompts of this source (spec.data.sources).")
    ] = None,
    evaluation: Annotated[
        str | None, typer.Option(help="Samples of this evaluation (spec.evaluation), in place of those of training.")
    ] = None,
    count: Annotated[int, typer.Option("--count", help="Most samples in the terminal.", min=1)] = DEFAULT_COUNT,
    as_json: Annotated[bool, typer.Option("--json", help="Print every sample as a line of JSON.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Write one page with curves and the samples of all rounds and evaluations; needs no server."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of the job. Default: the context's.")
    ] = None,
) -> None:
    """Show what the model answered, with rewards, outcome and reason."""
    if best and worst:
        raise fail("--best and --worst exclude each other: give one")
    if as_json and html is not None:
        raise fail("--json and --html exclude each other: give one")
    if of_source is not None and evaluation is not None:
        raise fail("--source and --evaluation exclude each other: give one")
    try:
        source = _source(job, namespace, evaluation)
        if evaluation is not None:
            _check_evaluation(source, evaluation)
        if html is not None:
            every = [] if evaluation is not None or of_source is not None else _evaluated(source)
            _write_page([source, *map(source.of_evaluation, every)], html, Order(source=of_source))
            return
        round_ = _round(source, number)
        shown = _shown(source, round_, Order(best, worst, filtered, of_source))
    except Unusable as error:
        raise fail(str(error)) from None
    except (NoAnswer, TornFile) as error:
        raise fail(str(error), code=1) from None
    except OSError as error:
        raise fail(f"{error.filename or job}: {error.strerror}") from None
    if as_json:
        for one in shown:
            typer.echo(one.to_json())
    else:
        _show(screen(), round_, shown, count)


def _source(job: str, namespace: str | None, evaluation: str | None) -> SampleSource:
    """Return where the samples are: a folder that exists, else a job in the cluster."""
    if namespace is None and Path(job).is_dir():
        return FolderSource(Path(job), evaluation)
    if "/" in job:
        raise Unusable(f"{job}: no such folder; the folder of a run (--workdir), or an RLJob's name would be right")
    from rljob_runtime.cli.samples.pods import PodSource

    try:
        return PodSource.of(job, namespace, evaluation)
    except (Unusable, NoAnswer) as error:
        if namespace is None:
            raise type(error)(f"{job}: no folder here; in the cluster: {error}") from None
        raise


def _check_evaluation(source: SampleSource, name: str) -> None:
    """Raise `Unusable` if the job has no result of this evaluation."""
    known = _evaluated(source)
    if name not in known:
        named = f"it has results of {', '.join(known)}" if known else "it has no results yet (spec.evaluation)"
        raise Unusable(f"--evaluation {name}: {source.name} has no result of it; {named}")


def _evaluated(source: SampleSource) -> list[str]:
    """Return the names of the job's evaluations that have a result."""
    return sorted({str(one["name"]) for one in source.evaluations() if "name" in one})


def _round(source: SampleSource, number: int | None) -> int:
    """Return the round to show. Raises `Unusable` if it has no samples."""
    rounds = source.rounds()
    if not rounds:
        raise Unusable(
            f"{source.name} has no samples: no round or evaluation has ended, spec.samples.perRound is 0, or the run "
            "is of an earlier version"
        )
    if number is None:
        return rounds[-1]
    if number not in rounds:
        raise Unusable(f"round {number} has no samples; rounds {_ranges(rounds)} have some (spec.samples.keepRounds)")
    return number


def _shown(source: SampleSource, number: int, order: Order) -> list[Sample]:
    """Return the samples of a round. Raises `Unusable` if none is of the prompt source that is asked for."""
    found = list(source.samples(number))
    known = sorted({source_of(one) for one in found} - {""})
    if order.source is not None and order.source not in known:
        named = f"it has samples of {', '.join(known)}" if known else "the job has no named sources (spec.data.sources)"
        raise Unusable(f"--source {order.source}: round {number} has no sample of it; {named}")
    return order(found)


def _ranges(rounds: Sequence[int]) -> str:
    """Write rising numbers as ranges.

    >>> _ranges([1, 2, 3, 7])
    '1-3, 7'
    """
    parts: list[list[int]] = []
    for number in rounds:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def _write_page(sources: Sequence[SampleSource], file: Path, order: Order) -> None:
    """Write the page of one job. `sources`: the first one has the name and the curves, all have samples."""
    newest_first = heapq.merge(*(_newest_first(one, order) for one in sources), key=lambda sample: -sample.round)
    found = page(sources[0].name, sources[0].reports(), newest_first, evaluations=sources[0].evaluations())
    file.write_text(found.text, encoding="utf-8")
    left_out = f"; {found.left_out} older samples left out" if found.left_out else ""
    typer.echo(f"{file}: {found.rounds} rounds, {found.samples} samples{left_out}")


def _newest_first(source: SampleSource, order: Order) -> Iterator[Sample]:
    """Yield the samples by falling rounds."""
    return (one for number in source.rounds()[::-1] for one in order.of_source(source.samples(number)))


def _show(console: Console, number: int, shown: Sequence[Sample], count: int) -> None:
    for one in shown[:count]:
        console.print(panel(one))
    if not shown:
        say(console, f"no sample of round {number} is of that kind")
    elif len(shown) > count:
        say(console, f"{len(shown) - count} more: --count, or --json for all", "dim")


def panel(sample: Sample) -> RenderableType:
    """Draw one sample. Texts of models are shown without control characters."""
    style = STYLES[sample.outcome]
    parts: list[RenderableType] = []
    if sample.episode is not None and sample.episode.turns:
        parts += episode_parts(sample.episode, style)
    else:
        for message in sample.prompt:
            parts += [Text(visible(message.get("role", "")), style="bold dim")]
            parts += [Text(visible(message.get("content", "")))]
        parts += [Text("response", style=f"bold {style}"), Text(visible(sample.response))]
    if sample.cause is not None:
        parts += [Text("cause", style=f"bold {style}"), Text(visible(sample.cause))]
    return Panel(
        Group(*parts),
        title=Text(visible(_title(sample))),
        subtitle=Text(visible(_facts(sample))),
        title_align="left",
        subtitle_align="left",
        border_style=style,
    )


def _title(sample: Sample) -> str:
    outcome = sample.outcome.value if sample.reason is None else f"{sample.outcome.value}: {sample.reason}"
    reward = "no reward" if sample.reward is None else f"reward {sample.reward:.4g}"
    terms = ", ".join(f"{name} {value:.4g}" for name, value in sample.rewards.items())
    scores = f"{reward} ({terms})" if terms else reward
    return f"round {sample.round}  {sample.prompt_id}.{sample.sample}  {outcome}  {scores}"


def _facts(sample: Sample) -> str:
    facts = [f"{sample.tokens} tokens", f"end: {sample.finish}" if sample.finish else "stopped before its end"]
    if sample.advantage is not None:
        facts.append(f"advantage {sample.advantage:+.3g}")
    if sample.weight_versions:
        facts.append(f"weights {', '.join(map(str, sample.weight_versions))}")
    if sample.staleness:
        facts.append(f"staleness {sample.staleness}")
    if sample.replica:
        facts.append(sample.replica)
    if sample.episode is not None:
        facts += episode_facts(sample.episode)
    return "  ".join(facts)
