"""Mutant: one wrong line of code, where it stands, and the tests that must fail with it."""

from __future__ import annotations

from dataclasses import dataclass


class BadMutant(ValueError):
    """A mutant that does not fit the code; the message has its name, its target and what would be right."""


@dataclass(frozen=True)
class Mutant:
    """A replacement of one fragment of code.

    The fragment is found by its syntax tree: layout, comments and quotes do not matter. It must occur exactly once in
    the target.
    """

    name: str
    """Unique. It says what the wrong code does."""
    target: str
    """Where the fragment stands: ``module:function``, ``module:Class.method``, ``module:outer.inner``.

    A fragment outside of every function has the name that it assigns: ``module:CONSTANT`` or ``module:Class.field``.
    ``module:Class`` is what else the class has outside of its methods, ``module:`` the rest of the module.
    """
    before: str
    """An expression, or statements that follow each other."""
    after: str
    """What replaces it. An empty text removes statements."""
    tests: tuple[str, ...]
    """Arguments of pytest: files, or tests by their path from the root. At least one of these tests must fail."""
    nth: int | None = None
    """Which of several equal fragments in the target, counted from 1."""
    text: bool = False
    """`before` is a part of a string, as the source spells it: of an SQL statement, for example."""
    canary: bool = False
    """``make test`` tries it too, and not only ``make test-all``."""

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @property
    def definition(self) -> str:
        return self.target.partition(":")[2]
