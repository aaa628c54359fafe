"""Which constants reach a parameter, whatever way they take there."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from hack.guard.flows import Flows
from hack.guard.names import arguments, environment, record_literals
from hack.guard.sources import Source, is_variable, is_word, literals

TROUBLE = """
    class Trouble:
        reason: str
        message: str
"""


def sources(*texts: str) -> list[Source]:
    return [Source(ast.parse(dedent(text))) for text in (TROUBLE, *texts)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('Trouble("One", "text")', {"One"}),
        ('Trouble(message="text", reason="One")', {"One"}),
        ('policies.Trouble("One", "text")', {"One"}),
        ('Trouble("One" if bad else "Other", "text")', {"One", "Other"}),
        ('Trouble(known or "One", "text")', {"One"}),
        ('Trouble("One"[:128], "text")', {"One"}),
        ('ONE = "One"\nTrouble(ONE, "text")', {"One"}),
        ('ONE, OTHER = "One", "Other"\nTrouble(ONE, "text")', {"One"}),
        ('class Why(StrEnum):\n    ONE = "One"\nTrouble(Why.ONE.value, "text")', {"One"}),
        ('WHY = {1: "One", 2: "Other"}\nTrouble(WHY.get(code, "Else"), "text")', {"One", "Other", "Else"}),
        ('def f():\n    why = "One"\n    return Trouble(why, "text")', {"One"}),
        ('def f():\n    for why in ("One", "Other"):\n        Trouble(why, "text")', {"One", "Other"}),
        ('def f():\n    return [Trouble(why, "text") for why in ("One", "Other")]', {"One", "Other"}),
        ('def f(why):\n    Trouble(why, "text")\nf("One")\nf(why="Other")', {"One", "Other"}),
        ('def f(why):\n    Trouble(why, "text")\ndef g(x):\n    f(x)\ng("One")', {"One"}),
        (
            'class C:\n    def f(self, why):\n        Trouble(why, "text")\n    def g(self):\n        self.f("One")',
            {"One"},
        ),
        ('def f(why):\n    f(why)\n    Trouble(why, "text")\nf("One")', {"One"}),
        (
            "def f():\n    try:\n        g()\n    except (NotUsable, Gone) as error:\n"
            '        Trouble(type(error).__name__, "text")',
            {"NotUsable", "Gone"},
        ),
        ('Trouble(other.reason, "One")', set()),
        ('Other("One", "text")', set()),
    ],
)
def test_constants_reach_a_parameter(text: str, found: set[str]) -> None:
    assert Flows(sources(text)).reaching(["Trouble"], "reason") == found


def test_a_constant_of_another_module_counts_and_the_own_one_comes_first() -> None:
    other, call = 'ONE = "Other"', 'Trouble(constants.ONE, "text")'
    assert Flows(sources(other, call)).reaching(["Trouble"], "reason") == {"Other"}
    assert Flows(sources(other, f'ONE = "Own"\n{call}')).reaching(["Trouble"], "reason") == {"Own"}


def test_constants_of_one_call_are_pairs() -> None:
    text = 'Trouble("One" if bad else "Other", "text")\nTrouble(message="other text", reason="One")'
    assert Flows(sources(text)).pairs("Trouble", "reason", "message") == {
        ("One", "text"),
        ("Other", "text"),
        ("One", "other text"),
    }


def test_takers_are_functions_and_classes_with_the_parameter() -> None:
    text = "def lose(self, machine, reason): ...\ndef other(why): ...\ndef filter(prompt, reason): ..."
    assert Flows(sources(text)).takers("reason") == {"Trouble", "lose"}


def test_literals_are_values_and_no_prose() -> None:
    text = '''
        """Docstring"""
        __all__ = ["Exported"]
        NAME = "Value"
        told = f"Part {NAME}"
        given({"Key": ["Element"]})
    '''
    assert set(literals(sources(text)[1])) == {"Value", "Key", "Element"}


@pytest.mark.parametrize("word", ["MachineLost", "Ready", "H100x"])
def test_a_word_has_the_shape_of_a_name(word: str) -> None:
    assert is_word(word)
    assert not is_variable(word)


@pytest.mark.parametrize("text", ["", "lost", "Machine lost", "GPU", "Machine-Lost", "Über"])
def test_no_other_text_is_a_word(text: str) -> None:
    assert not is_word(text)


def test_variables_are_found_by_shape_and_where_they_are_read() -> None:
    text = """
        ENV_NAME = "RLJOB_NAME"
        os.environ.get("KUBECONFIG", "~")
        os.environ["PATH"]
        os.getenv("HOME")
        other.get("NOTHING")
    """
    (_, source) = sources(text)
    assert set(environment(source)) == {"KUBECONFIG", "PATH", "HOME"}
    assert set(record_literals([source])["environment"]) == {"RLJOB_NAME", "KUBECONFIG", "PATH", "HOME"}
    assert is_variable("POD_NAME")
    assert not any(map(is_variable, ("POD", "Pod_Name", "_", "POD_NAME=")))


def test_arguments_of_argparse_are_found_with_their_choices() -> None:
    text = 'parser.add_argument("role", choices=("head", "worker"), help="prose")\nparser.add_argument("-n", "--name")'
    assert set(arguments(sources(text)[1])) == {"role", "head", "worker", "-n", "--name"}
