"""Page: curves, histograms and samples of a job as one HTML file, which loads nothing.

The texts are a model's. They are data in the page, never markup: the data block is JSON without `<`, `>` and `&`, the
script inserts text nodes only, and the policy of the page allows its own script and style, by their digests, and
nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from rljob_runtime.samples.record import Sample

MOST_BYTES = 24 << 20
"""Bytes of samples in a page. A browser shows that many without trouble."""
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


@dataclass(frozen=True)
class Page:
    """A page, and what it holds. `left_out`: samples that it has no room for."""

    text: str
    rounds: int
    samples: int
    left_out: int


def page(
    name: str,
    reports: Sequence[dict[str, Any]],
    newest_first: Iterable[Sample],
    most: int = MOST_BYTES,
    evaluations: Sequence[dict[str, Any]] = (),
) -> Page:
    """Return the page of a job. `reports`: lines of `rounds.jsonl`; `evaluations`: those of `evaluations.jsonl`.

    Older samples are left out above `most` bytes.
    """
    kept: list[str] = []
    size = left_out = 0
    for sample in newest_first:
        text = sample.to_json()
        size += len(text.encode("utf-8", "backslashreplace"))
        if size > most:
            left_out += 1
        else:
            kept.append(text)
    tables = {"name": name, "reports": reports, "evaluations": evaluations, "leftOut": left_out}
    head = json.dumps(tables, ensure_ascii=False)
    data = f'{head[:-1]}, "samples": [{", ".join(kept)}]}}'.translate(_ESCAPES)
    style, script = _part("page.css"), _part("page.js")
    text = _fill(
        _part("page.html"),
        {
            "title": escape(name),
            "policy": _policy(style, script),
            "style": style,
            "script": script,
            "data": data.encode("utf-8", "backslashreplace").decode(),
        },
    )
    return Page(text, len(reports), len(kept), left_out)


def _part(name: str) -> str:
    return (files("rljob_runtime.samples") / "web" / name).read_text(encoding="utf-8")


def _fill(template: str, values: dict[str, str]) -> str:
    """Fill `{{name}}` places. Inserted text is not scanned again."""
    pieces = template.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += [values[name], rest]
    return "".join(filled)


def _policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy."""
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none';"
        " form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
