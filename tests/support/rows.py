"""Rows of parametrized tests that take long together: one of them stands for its family in `make test`."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any) -> list[Any]:
    """Mark values for `parametrize` as rows that only `make test-all` and `make unit` run."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]
