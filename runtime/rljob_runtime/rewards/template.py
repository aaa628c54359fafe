"""Texts with places to fill in."""

from __future__ import annotations

import re
from collections.abc import Mapping


def fill(template: str, values: Mapping[str, str]) -> str:
    """Each `{name}` of `values` replaced, once: what is filled in is not looked at again. Other braces stay."""
    places = re.compile("|".join(re.escape(f"{{{name}}}") for name in values))
    return places.sub(lambda match: values[match.group()[1:-1]], template)
