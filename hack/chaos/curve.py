"""Reward curve: the rewards of a disturbed job and of undisturbed ones.

python -m hack.chaos --json build/chaos.json
python -m hack.chaos --faults 0 --rounds N --json build/calm-1.json        # N: the rounds of the first; and again
python -m hack.chaos.curve build/chaos.json build/calm-1.json build/calm-2.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

WINDOWS = 10


@dataclass(frozen=True)
class Window:
    """Mean rewards of rounds `first` to `last`, both included, of the disturbed job and of each undisturbed one."""

    first: int
    last: int
    disturbed: float
    calm: tuple[float, ...]

    @property
    def away(self) -> float:
        """Distance of the disturbed job from the mean of the others."""
        return self.disturbed - fmean(self.calm)

    @property
    def noise(self) -> float:
        """Largest distance of an undisturbed job from the mean of all of them."""
        return max(abs(one - fmean(self.calm)) for one in self.calm)


def rewards(folder: Path) -> list[float | None]:
    """Return the mean reward of every round, from the round log below `folder`; None for a round without a line.

    Of a round that was repeated after a rewind, the last reward counts.
    """
    found: dict[int, float] = {}
    for log in sorted(folder.rglob("rounds.jsonl"))[:1]:
        for line in log.read_text(encoding="utf-8").splitlines():
            report = json.loads(line)
            if report.get("reward") is not None:
                found[report["round"]] = report["reward"]
    return [found.get(number) for number in range(1, max(found, default=0) + 1)]


def compare(disturbed: Sequence[float | None], calm: Sequence[Sequence[float | None]]) -> list[Window]:
    """Compare the rounds that all jobs have, in `WINDOWS` windows. Raises `ValueError` if there are too few rounds."""
    length = min(map(len, (disturbed, *calm)))
    if not calm or length < WINDOWS:
        raise ValueError(f"{len(calm)} undisturbed jobs, {length} rounds in common: 1 and {WINDOWS} are the least")
    edges = [length * one // WINDOWS for one in range(WINDOWS + 1)]
    return [
        Window(start + 1, end, _mean(disturbed[start:end]), tuple(_mean(one[start:end]) for one in calm))
        for start, end in pairwise(edges)
    ]


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return fmean(known) if known else float("nan")


def main(files: Sequence[str]) -> int:
    """Print the windows of the first file's job and of the others'."""
    if len(files) < 2:
        print(__doc__)
        return 2
    curves = [json.loads(Path(file).read_text(encoding="utf-8"))["rewards"] for file in files]
    windows = compare(curves[0], curves[1:])
    print("rounds        disturbed  undisturbed")
    for one in windows:
        calm = "  ".join(f"{value:.3f}" for value in one.calm)
        print(f"{one.first:>5} - {one.last:<5}     {one.disturbed:.3f}  {calm}")
    print(
        f"curve: mean difference {fmean(one.away for one in windows):+.3f}, largest "
        f"{max((one.away for one in windows), key=abs):+.3f}; undisturbed jobs from their own mean at most "
        f"{max(one.noise for one in windows):.3f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
