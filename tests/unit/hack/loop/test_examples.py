"""Property tests draw fewer examples where slow rows are left out, and all of them everywhere else."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator

import hypothesis
import pytest

from tests.support.examples import examples
from tests.support.paths import ROOT


@pytest.fixture
def configure(pytestconfig: pytest.Config) -> Iterator[Callable[[str | None], hypothesis.settings]]:
    """Configure as a run with an expression of markers. Returns the settings of a run with every row.

    The profile of this run is loaded again afterwards, whatever it has.
    """
    before = hypothesis.settings.get_current_profile_name()
    conftest = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    assert conftest is not None

    def run(expression: str | None) -> hypothesis.settings:
        hypothesis.settings.load_profile(conftest.PROFILE)
        conftest.pytest_configure(Namespace(option=Namespace(markexpr=expression)))
        return hypothesis.settings.get_profile(conftest.PROFILE)

    yield run
    hypothesis.settings.load_profile(before)


@pytest.mark.parametrize("expression", [None, "", "cluster", "slow", "not (cluster or realnodes or engine)"])
def test_with_slow_rows_every_example_is_drawn(configure, expression: str | None) -> None:
    full = configure(expression)
    assert hypothesis.settings().max_examples == full.max_examples == 100
    assert [examples(number) for number in (7, 60, 300)] == [7, 60, 300]


def test_without_them_a_quarter_is_drawn(configure) -> None:
    full = configure("cluster and not slow")
    assert hypothesis.settings().max_examples == 25
    assert [examples(number) for number in (7, 60, 300)] == [5, 15, 75]
    assert hypothesis.settings().derandomize == full.derandomize
    assert hypothesis.settings().deadline is None
