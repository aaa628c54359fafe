"""Share audit of `mode: Asynchronous`: what the cursor counts of each source was drawn, and has the shares.

A filtered prompt may be taken off the count, so that another one of its source takes its place. New weights begin new
counts, also weights that were changed and changed back, and no row tells when. So what was drawn bounds a count from
above only; from below, the shares bind it to the counts of the other sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction

from rljob_runtime.audit.findings import Finding, Rule
from rljob_runtime.protocols.trajectory import Cursor

KEY = "shares"


def share_findings(
    first: Cursor, now: Cursor, drawn: Mapping[str, int], filtered: Mapping[str, int]
) -> Iterator[Finding]:
    """Yield what is wrong with the counts of `now`.

    `first` is the cursor at which the history began. `drawn` and `filtered`: fresh prompts and filtered ones since
    then, by source."""
    before = Counter({one.name: one.allotted for one in first.sources})
    weights = {one.name: Fraction(one.weight) for one in now.sources}
    if first.sources and weights != {one.name: Fraction(one.weight) for one in first.sources}:
        before = Counter(dict.fromkeys(weights, 0))
    counts = {one.name: one.allotted for one in now.sources}
    for name, count in counts.items():
        if count > (most := before[name] + drawn.get(name, 0)):
            yield Finding(Rule.SHARE, KEY, f"{count} prompts of {name} are counted; {most} were drawn")
    total, whole, slack = sum(counts.values()), sum(weights.values()), sum(filtered.values())
    for name, weight in weights.items():
        if whole and abs(counts[name] - total * weight / whole) >= 1 + slack:
            yield Finding(
                Rule.SHARE, KEY, f"{counts[name]} of {total} prompts are of {name}; its share is {weight}/{whole}"
            )
