"""Property tests draw fewer examples where slow rows are left out, and all of them everywhere else."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

import hypothesis
import pytest

from tests import conftest
from tests.support.examples import examples

FULL = hypothesis.settings.get_profile(conftest.PROFILE)


@pytest.fixture(autouse=True)
def profile() -> Iterator[None]:
    """The profile of a run with every row, whatever this run has; that of this run afterwards."""
    before = hypothesis.settings.get_current_profile_name()
    hypothesis.settings.load_profile(conftest.PROFILE)
    yield
    hypothesis.settings.load_profile(before)


def configure(expression: str | None) -> None:
    conftest.pytest_configure(Namespace(option=Namespace(markexpr=expression)))  # type: ignore[arg-type]


@pytest.mark.parametrize("expression", [None, "", "cluster", "slow", "not (cluster or realnodes or engine)"])
def test_with_slow_rows_every_example_is_drawn(expression: str | None) -> None:
    configure(expression)
    assert hypothesis.settings().max_examples == FULL.max_examples == 100
    assert [examples(number) for number in (7, 60, 300)] == [7, 60, 300]


def test_without_them_a_quarter_is_drawn() -> None:
    configure("cluster and not slow")
    assert hypothesis.settings().max_examples == 25
    assert [examples(number) for number in (7, 60, 300)] == [5, 15, 75]
    assert hypothesis.settings().derandomize == FULL.derandomize
    assert hypothesis.settings().deadline is None
