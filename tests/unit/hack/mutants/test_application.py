"""A mutant changes the fragment that it names, in the place that it names, and nothing else."""

from __future__ import annotations

import ast
import textwrap

import pytest

from hack.mutants import BadMutant, Mutant
from hack.mutants.application import apply

SOURCE = textwrap.dedent(
    '''
    LIMIT, MOST = 4, 8
    QUERY = "SELECT a FROM b WHERE c > 1"


    def first(a, b=2):
        if a < b:
            return a  # the smaller
        return b * (a + 1)


    def second(a, b):
        """Compare: a < b."""
        total = a < b
        return call(a, deep=True, seed=b) if total else {"a": a, "b": b}


    class Box:
        size: int = 3

        @property
        def room(self):
            return self.size - 1

        async def fill(self, items):
            # Naïve: one after the other.
            def put(item):
                self.kept.append(item)

            for item in items:
                put(item)
                self.count += 1
            return self.count - self.lost, self.count - self.lost
    '''
)


def mutant(definition: str, before: str, after: str, nth: int | None = None, text: bool = False) -> Mutant:
    return Mutant("broken", f"some.module:{definition}", before, after, ("tests/x.py",), nth, text)


CASES = {
    "an expression, in the function named": (
        mutant("second", "a < b", "a <= b"),
        ("total = a < b", "total = (a <= b)"),
    ),
    "an expression that binds weaker than its place": (mutant("first", "a + 1", "a or 1"), ("(a + 1)", "((a or 1))")),
    "however it is laid out": (mutant("first", "b*(a+1)", "b"), ("b * (a + 1)", "(b)")),
    "a default": (mutant("first", "2", "3"), ("b=2", "b=(3)")),
    "a statement": (mutant("first", "return a", "return b"), ("return a  #", "return b  #")),
    "a statement for an expression": (mutant("Box.fill.put", "self.kept.append(item)", "return"), None),
    "statements that go": (
        mutant("Box.fill", "put(item)\nself.count += 1", "self.count += 2"),
        ("put(item)\n            self.count += 1", "self.count += 2"),
    ),
    "a removed statement": (
        mutant("Box.fill", "self.count += 1", ""),
        ("            self.count += 1\n", "            \n"),
    ),
    "a block keeps its indentation": (
        mutant("first", "if a < b:\n    return a", "if a:\n    return a\nelse:\n    return 0"),
        (
            "    if a < b:\n        return a  # the smaller\n",
            "    if a:\n        return a\n    else:\n        return 0  # the smaller\n",
        ),
    ),
    "an argument": (mutant("second", "deep=True", "deep=False"), ("deep=True", "deep=False")),
    "an argument that goes": (mutant("second", "deep=True", ""), ("deep=True, ", " ")),
    "the last argument goes": (mutant("second", "seed=b", ""), ("seed=b", "")),
    "an entry": (mutant("second", '"a": a', '"a": b, "c": a'), ('"a": a', '"a": b, "c": a')),
    "one of several": (
        mutant("Box.fill", "self.count - self.lost", "0", nth=2),
        (", self.count - self.lost", ", (0)"),
    ),
    "behind letters of several bytes": (mutant("Box.fill", "items", "[]"), ("in items:", "in ([]):")),
    "a constant": (mutant("MOST", "8", "9"), ("4, 8", "4, (9)")),
    "a field of a class": (mutant("Box.size", "3", "4"), ("= 3", "= (4)")),
    "a class outside of its methods": (mutant("Box", "3", "4"), ("= 3", "= (4)")),
    "a module outside of its functions": (mutant("", "4, 8", "4, 4"), ("4, 8", "(4, 4)")),
    "a method of a property": (mutant("Box.room", "self.size - 1", "self.size"), ("self.size - 1", "(self.size)")),
    "a part of a text": (mutant("QUERY", "c > 1", "c > 2", text=True), ("c > 1", "c > 2")),
}


@pytest.mark.parametrize(("broken", "change"), CASES.values(), ids=CASES.keys())
def test_a_fragment_is_replaced_where_it_stands(broken: Mutant, change: tuple[str, str] | None) -> None:
    got = apply(broken, SOURCE)
    assert ast.dump(ast.parse(got)) != ast.dump(ast.parse(SOURCE))
    if change is not None:
        before, after = change
        assert SOURCE.count(before) == 1
        assert got == SOURCE.replace(before, after)


REFUSED = {
    "there is no such function": (mutant("third", "a", "b"), "there is no third: a function, a class"),
    "the function does not have it": (mutant("second", "a + 1", "a"), "second: it does not have 'a + 1'"),
    "a nested name": (mutant("put", "item", "1"), "there is no put"),
    "it stands there twice": (
        mutant("Box.fill", "self.count - self.lost", "0"),
        "2 times, in lines 33, 33: take a larger fragment, or set nth",
    ),
    "nth is too large": (mutant("Box.fill", "self.count - self.lost", "0", nth=3), "1 to 2 would be right"),
    "nth of one": (mutant("first", "a + 1", "a", nth=1), "no nth would be right"),
    "nothing changes": (mutant("first", "a + 1", "(a + 1)"), "changes nothing"),
    "before is empty": (mutant("first", " ", "a"), "`before` is empty"),
    "before is no Python": (mutant("first", "if a < b:", "if a:"), "neither expressions nor statements nor entries"),
    "a block without statements": (mutant("Box.fill.put", "self.kept.append(item)", ""), "it is no Python"),
    "a text that is in the code only": (mutant("first", "a + 1", "a", text=True), "it does not have 'a + 1'"),
    "nth of a text": (mutant("QUERY", "c > 1", "c > 2", nth=1, text=True), "a longer text would be right"),
    "a text that ends its string": (mutant("QUERY", "c > 1", 'c" > "1', text=True), "is no string any more"),
}


@pytest.mark.parametrize(("broken", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_is_refused_and_the_message_names_the_mutant(broken: Mutant, message: str) -> None:
    with pytest.raises(BadMutant) as caught:
        apply(broken, SOURCE)
    assert str(caught.value).startswith(f"mutant 'broken': {broken.target}: ")
    assert message in str(caught.value)


def test_a_function_of_another_name_is_left_alone() -> None:
    """Both functions have the comparison."""
    for name, line in (("first", "    if (False):"), ("second", "    total = (False)")):
        got = apply(mutant(name, "a < b", "False"), SOURCE)
        assert [new for new, old in zip(got.splitlines(), SOURCE.splitlines(), strict=True) if new != old] == [line]
