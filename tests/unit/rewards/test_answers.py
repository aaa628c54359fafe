"""Final answers of mathematics: a table of right values by kind, and that a number equals itself in every notation and
no other number in any."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rljob_runtime.data.prompt import Prompt
from rljob_runtime.rewards import builtin
from rljob_runtime.rewards.answers import UnusableReference, matches
from rljob_runtime.rewards.answers.arithmetic import NoArithmetic, TooLarge, evaluate
from rljob_runtime.rewards.answers.final import final_answer
from rljob_runtime.rewards.references import reference_problem
from rljob_runtime.rewards.rules import CodeRule, Rule
from tests.support.examples import examples
from tests.support.processor_time import within

GSM8K = "Ann had 7 + 5 = <<7+5=12>>12 nuts and ate 4.\nShe has 12 - 4 = <<12-4=8>>8.\n#### 8"

TABLE = {
    "working before the answer": (GSM8K, r"\boxed{8}", True),
    "a step of the working": (GSM8K, r"\boxed{12}", False),
    "thousands": ("2,450", r"\boxed{2450}", True),
    "thousands in TeX": ("2450", r"\boxed{2{,}450}", True),
    "thousands with a thin space": (r"10\,080", r"\boxed{10080}", True),
    "thousands with spaces": ("1 000 000", r"\boxed{1000000}", True),
    "no thousands": ("2,450", r"\boxed{2.450}", False),
    "scientific": ("1e-5", r"\boxed{10^{-5}}", True),
    "scientific, small": ("1e-7", r"\boxed{2 \times 10^{-7}}", False),
    "scientific, as a factor": ("1.5e-3", r"\boxed{1.5\cdot10^{-3}}", True),
    "scientific, large": ("1.2e+22", r"\boxed{1.2 \times 10^{22}}", True),
    "raised digits": ("10⁵", r"\boxed{100000}", True),
    "a letter e": ("2e3", r"\boxed{2e}", False),
    "half": ("3½", r"\boxed{3.5}", True),
    "mixed": (r"2\frac{3}{4}", r"\boxed{2.75}", True),
    "mixed, plain": ("2 3/4", r"\boxed{\frac{11}{4}}", True),
    "mixed, not a product": ("2 3/4", r"\boxed{1.5}", False),
    "negative mixed": ("-2 3/4", r"\boxed{-\frac{11}{4}}", True),
    "percent": ("12.5%", r"\boxed{12.5\%}", True),
    "percent as a share": ("0.5", r"\boxed{50\%}", True),
    "percent left out": ("50%", r"\boxed{50}", True),
    "percent wrong": ("50%", r"\boxed{5}", False),
    "sign of another script": ("-3", "The answer is −3", True),
    "full width": ("３．１４", r"\boxed{3.14}", True),
    "money": ("$1,250.50", r"\boxed{\$1250.5}", True),
    "millions": ("5 million", r"\boxed{5,000,000}", True),
    "millions left out": ("5 million", r"\boxed{5}", False),
    "unit left out": ("5 cm", r"\boxed{5}", True),
    "unit by another name": ("5 cm", r"\boxed{5\text{ centimeters}}", True),
    "another unit": ("5 cm", r"\boxed{5\text{ km}}", False),
    "degrees": ("90", r"\boxed{90^\circ}", True),
    "a counter": ("3个", r"\boxed{3}", True),
    "ten thousands": ("3万", r"\boxed{30000}", True),
    "Chinese around a number": ("3", "所以一共有3个苹果。", True),
    "Chinese before an answer": ("奇数", "答案是奇数。", True),
    "Chinese, wrong": (r"\text{奇数}", r"\boxed{偶数}", False),
    "the last box": ("5", r"First \boxed{4}, no: \boxed{5}", True),
    "an earlier box": ("4", r"First \boxed{4}, no: \boxed{5}", False),
    "a box in a box": ("7", r"\boxed{\text{it is } \boxed{7}}", True),
    "a box cut off": ("3", r"so it is \boxed{3", False),
    "a box cut off after another": ("3", r"\boxed{3}, or better \boxed{3", False),
    "words as letters": ("BAC", r"\boxed{ABC}", False),
    "words": ("Monday", "The answer is Monday.", True),
    "words in TeX": (r"\text{Evelyn}", r"\boxed{evelyn}", True),
    "product of letters": ("xy", r"\boxed{yx}", True),
    "choice": ("C", r"\boxed{\textbf{(C)}\ 12}", True),
    "choice's value": ("12", r"\boxed{\textbf{(C)}\ 12}", True),
    "choice, wrong": ("B", "The answer is (C).", False),
    "date as a difference": ("2008", r"\boxed{2024-01-15}", False),
    "date": ("2024-01-15", r"\boxed{2024/1/15}", True),
    "date as a quotient": ("1/2/2023", r"\boxed{\frac{1}{4046}}", False),
    "time": ("12:30", r"\boxed{12:30}", True),
    "time, wrong": ("12:00", r"\boxed{1:00}", False),
    "half of the day": ("3 p.m.", r"\boxed{3\!:\!00\text{ pm}}", True),
    "other half of the day": ("3 p.m.", r"\boxed{3\text{ a.m.}}", False),
    "ratio": ("3:2", r"\boxed{3 : 2}", True),
    "ratio turned": ("3:2", r"\boxed{2:3}", False),
    "range": ("5-10 cm", "The answer is 5 to 10 cm.", True),
    "range as a difference": ("5-10", r"\boxed{-5}", False),
    "difference": ("95", r"\boxed{100-5}", True),
    "interval": ("[0, 1)", r"\boxed{[0,1)}", True),
    "interval, closed": ("[0, 1)", r"\boxed{[0,1]}", False),
    "interval by an inequality": (r"[-1,\infty)", r"$x \ge -1$", True),
    "interval by two": ("(0,1]", r"\boxed{0 < x \le 1}", True),
    "interval in French": ("(0,1)", r"\boxed{]0,1[}", True),
    "union": (r"(-\infty,0)\cup(1,\infty)", r"\boxed{(1,\infty) \cup (-\infty, 0)}", True),
    "set": (r"\{1,2,3\}", r"\boxed{\{3,2,1\}}", True),
    "list in another order": ("1, 2", r"\boxed{2,1}", True),
    "list, longer": ("1, 2", r"\boxed{1,2,3}", False),
    "point": ("(1,2)", r"\boxed{(2,1)}", False),
    "several names": ("x = 1, y = 2", r"\boxed{y=2, x=1}", True),
    "several names, wrong": ("x = 1, y = 2", r"\boxed{x=2, y=1}", False),
    "both signs": (r"\pm 3", r"\boxed{-3, 3}", True),
    "one sign of two": (r"\pm 3", r"\boxed{3}", False),
    "both of two": ("2 or 3", r"\boxed{2}", False),
    "name": ("x = 5", r"\boxed{5}", True),
    "last side": ("6", "2 + 4 = 6", True),
    "equation": ("y = 2x + 1", r"\boxed{2x - y + 1 = 0}", True),
    "equation answered by its right side": ("2x+1=5", r"\boxed{5}", False),
    "base": ("1011_2", r"\boxed{1011}", True),
    "matrix": (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{\begin{bmatrix}1 & 2\\ 3 & 4\end{bmatrix}}", True),
    "root": (r"2\sqrt{2}", r"\boxed{\sqrt{8}}", True),
    "root as a decimal": (r"\sqrt{17}", r"\boxed{4.123106}", True),
    "root as a short decimal": (r"\sqrt{17}", r"\boxed{4.12}", False),
    "third": ("1/3", r"\boxed{0.333333}", True),
    "third, short": ("1/3", r"\boxed{0.3333}", False),
    "noise of a double": ("0.30000000000000004", r"\boxed{0.3}", True),
    "last digit": ("12345678901234567890123", r"\boxed{12345678901234567890124}", False),
    "power of two": (r"\frac{1}{2^{99}}", r"\boxed{\frac{1}{2^{98}}}", False),
    "factorial": ("3628800", r"\boxed{10!}", True),
    "prose": ("42", "I think it's 42 because 6*7=42.", True),
    "last in prose": ("42", "It is 42. I checked 3 times.", False),
    "dollars in prose": ("18", "She buys eggs for $2 and makes $18.", True),
    "nothing": ("3", " \n", False),
    "empty box": ("3", r"\boxed{}", False),
}


@pytest.mark.parametrize(("reference", "response", "right"), TABLE.values(), ids=TABLE)
def test_answers(reference: str, response: str, right: bool) -> None:
    assert matches(reference, response) is right


@pytest.mark.parametrize(
    "reference",
    ["", "  ", "####", "???", r"\frac{1", r"\begin{tabular}a&b\end{tabular}", "x" * 9000, "x^{100000}", "9^{9^{9}}+x"],
)
def test_a_reference_that_cannot_be_compared_is_told(reference: str) -> None:
    with pytest.raises(UnusableReference, match=r"reference answer .*(contains no answer|cannot be parsed|too large)"):
        matches(reference, r"\boxed{2}")


GIANTS = [
    "9^{9^{9}}",
    "100000000!",
    r"\binom{10^7}{5*10^6}",
    r"\sqrt{9^{9^9}}",
    "(x+1)^{100000}",
    "9^{9^{9}}+x",
    r"\sum_{i=1}^{100000000} i^2",
    r"\prod_{i=1}^{100000} i",
    r"\gcd(9^{9^9},3)",
    r"\gcd((10^{9999})^{9999},3)",
    r"\sqrt{(9^{9})!}",
    r"\log(9^{9^9})",
    "1e999999999",
    "1e99999x",
    "2^" * 3000 + "1",
    "(" * 5000,
    "1+" * 3000 + "1",
    "{" * 3000 + "}" * 3000,
    r"\frac{" * 700 + "}" * 700,
    "1 a1 " * 1500,
]


@pytest.mark.parametrize("giant", GIANTS, ids=lambda giant: giant[:24])
def test_what_no_machine_could_evaluate_is_worth_nothing_immediately(giant: str) -> None:
    matches("x^2", r"\boxed{\sqrt{x}}")  # the parser's tables are built once
    for reference in ("9", "x^2"):
        with within(2):
            assert matches(reference, f"\\boxed{{{giant}}}") is False


@pytest.mark.parametrize(
    "response",
    [
        "9" * 200000,
        r"\boxed{" * 20000,
        "$" * 50000,
        "answer is " * 20000,
        "1 a1 " * 20000,
        "#### " * 20000,
        "answer" * 20000,
        r"\[" * 20000,
        r"\(x" * 20000,
        "$x" * 20000,
        "1," * 50000,
        "-" * 100000,
        ". " * 50000,
    ],
    ids=lambda response: response[:12],
)
def test_a_final_answer_is_found_in_time_proportional_to_the_text(response: str) -> None:
    with within(1):
        final_answer(response)


# --- numbers in every notation ----------------------------------------------------------------------------------------


def decimal(value: Fraction) -> str:
    """Exactly, with a point: of a value with few digits."""
    digits = str(abs(value.numerator) * 10**9 // value.denominator).rjust(10, "0")
    text = f"{digits[:-9]}.{digits[-9:]}".rstrip("0").rstrip(".")
    return f"-{text}" if value < 0 else text


def grouped(value: Fraction) -> str:
    whole, point, rest = decimal(value).partition(".")
    return f"{int(whole):,}".replace("-0", "-0") + point + rest if whole != "-0" else decimal(value)


def scientific(value: Fraction) -> str:
    return f"{float(value):.14e}"


def mixed(value: Fraction) -> str:
    whole, rest = divmod(abs(value), 1)
    sign = "-" if value < 0 else ""
    if not rest or not whole:
        return f"{value.numerator}/{value.denominator}" if rest else f"{sign}{whole}"
    return f"{sign}{whole} {rest.numerator}/{rest.denominator}"


NOTATIONS: dict[str, Callable[[Fraction], str]] = {
    "decimal": decimal,
    "grouped": grouped,
    "grouped in TeX": lambda value: grouped(value).replace(",", "{,}"),
    "scientific": scientific,
    "product": lambda value: "{} \\times 10^{{{}}}".format(*scientific(value).split("e")).replace("{+", "{"),
    "fraction": lambda value: f"\\frac{{{value.numerator}}}{{{value.denominator}}}",
    "quotient": lambda value: f"{value.numerator}/{value.denominator}",
    "mixed": mixed,
    "minus": lambda value: decimal(value).replace("-", "\N{MINUS SIGN}"),
    "wide": lambda value: decimal(value).translate({48 + digit: 0xFF10 + digit for digit in range(10)}),
    "money": lambda value: decimal(value).replace("-", "-$") if value < 0 else f"\\${decimal(value)}",
    "unit": lambda value: f"{decimal(value)}\\text{{ cm}}",
    "percent": lambda value: f"{decimal(value * 100)}\\%",
    "named": lambda value: f"x = {decimal(value)}",
    "counted": lambda value: f"{decimal(value)}个",
    "JSON": lambda value: json.dumps(float(value)),
}
VALUES = st.builds(lambda digits, places: Fraction(digits, 10**places), st.integers(-(10**7), 10**7), st.integers(0, 6))


@settings(max_examples=examples(300))
@given(value=VALUES, other=VALUES, one=st.sampled_from(sorted(NOTATIONS)), two=st.sampled_from(sorted(NOTATIONS)))
def test_a_number_is_itself_in_every_notation_and_no_other(
    value: Fraction, other: Fraction, one: str, two: str
) -> None:
    assume({one, two} != {"money", "unit"})  # dollars are no centimetres
    reference, same = NOTATIONS[one](value), NOTATIONS[two](value)
    assert matches(reference, f"So it is \\boxed{{{same}}}.")
    if (one, two) != ("percent", "percent") and "percent" in (one, two):
        assume(other not in (value * 100, value / 100))
    if other != value:
        assert not matches(reference, f"So it is \\boxed{{{NOTATIONS[two](other)}}}.")


PROSE = ["decimal", "grouped", "scientific", "minus", "wide", "JSON"]


@settings(max_examples=examples(300))
@given(value=VALUES, other=VALUES, one=st.sampled_from(PROSE), two=st.sampled_from(PROSE))
def test_the_last_number_of_a_text_in_every_notation(value: Fraction, other: Fraction, one: str, two: str) -> None:
    prompt = Prompt(0, "", (), f"Worked out: 3 + 4.\n#### {NOTATIONS[one](value)}")
    for text in ("Of 7 it is {}.", "7 = {}", "={} apples", "{}\n", "**{}**", "答案是{}。"):
        response = text.format(NOTATIONS[two](value))
        assert builtin.last_number(prompt, response) == 1, response
        assert builtin.has_number(prompt, response) == 1
        if other != value:
            assert builtin.last_number(prompt, text.format(NOTATIONS[two](other))) == 0


LAST = {
    "5-3": "3",
    "from 2-4": "4",
    "x-4": "4",
    "it is -4": "-4",
    "(\N{MINUS SIGN}4)": "-4",
    "1,002": "1002",
    "1,2": "2",
    "1, 234": "234",
    ".5": ".5",
    "3eggs": "3",
    "1e-5.": "1e-5",
    "2E+3": "2E+3",
    "v5.": "5",
    "none": None,
}


@pytest.mark.parametrize("text", LAST)
def test_what_counts_as_a_number(text: str) -> None:
    assert builtin._extract(text, "LastNumber") == LAST[text]
    assert builtin.has_number(Prompt(0, "", (), "1"), text) == (LAST[text] is not None)


@pytest.mark.parametrize("answer", ["Two and one make three.\n#### three", "", "1/2", "5 or 6", "1e999999999"])
def test_a_reference_that_is_no_number_is_told_whatever_the_response_is(answer: str) -> None:
    prompt = Prompt(0, "", (), answer)
    for response in ("none", "3", "three"):
        with pytest.raises(UnusableReference, match="the reference answer"):
            builtin.last_number(prompt, response)


def test_a_response_past_every_size_is_no_number() -> None:
    prompt = Prompt(0, "", (), "5")
    for response in ("1e999999999", "9" * 100_000, "1e-99999999999999999999"):
        assert builtin.last_number(prompt, response) == 0


# --- references at the start ------------------------------------------------------------------------------------------

MATH, LAST_NUMBER = "rljob_runtime.rewards.builtin:math", "rljob_runtime.rewards.builtin:last_number"


@pytest.mark.parametrize(
    ("rule", "answer", "problem"),
    [
        (Rule("a", MATH), "1/2", None),
        (Rule("a", MATH), "???", "reward a cannot score it: the reference answer '???' cannot be parsed"),
        (Rule("b", LAST_NUMBER), "#### 1,002", None),
        (
            Rule("b", LAST_NUMBER),
            "#### a",
            "reward b cannot score it: the reference answer 'a' has 0 numbers in it; one",
        ),
        (Rule("c", "mine:function"), "???", None),
        (CodeRule("d"), "[]", "reward d cannot score it: field 'tests' is "),
        (CodeRule("d"), "[" * 100_000, "reward d cannot score it: field 'tests' is no JSON"),
        (CodeRule("d"), '["assert 1"]', None),
    ],
)
def test_what_a_reward_needs_of_a_record_is_looked_at_before(
    rule: Rule | CodeRule, answer: str, problem: str | None
) -> None:
    found = reference_problem([rule])(Prompt(0, "", (), answer))
    assert found is None if problem is None else found is not None and found.startswith(problem)


# --- arithmetic -------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(300))
@given(
    st.text("0123456789.,+-*/^!(){}e \\", max_size=40)
    | st.from_regex(r"(\d{1,9}[\^!*/+-]{0,2}\{?){1,12}", fullmatch=True)
)
def test_arithmetic_ends_soon_whatever_is_written(text: str) -> None:
    with within(1):
        try:
            value = evaluate(text)
        except (NoArithmetic, TooLarge):
            value = Fraction(0)
        assert isinstance(value, Fraction)


def test_a_new_process_prints_nothing_of_the_formula_library() -> None:
    program = (
        "from rljob_runtime.rewards.answers.symbolic import _verified, parsed\n"
        "print(_verified(parsed('\\\\frac{1}{2}'), parsed('0.5')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
