"""A tool that a model may call: see calculator-agent.yaml."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
LONGEST = 100
"""Most characters of an expression: longer ones cost time, and no question needs them."""


def calculate(expression: str) -> str:
    """Calculate an expression of integers with +, - and *, e.g. 47 * 68."""
    # A model writes the text, so it is parsed and never run. A mistake is the model's: it reads why.
    if len(expression) > LONGEST:
        return f"error: more than {LONGEST} characters"
    try:
        return str(_value(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, ValueError) as error:
        return f"error: {error.msg if isinstance(error, SyntaxError) else error}"


def _value(node: ast.expr) -> int:
    """Return the value of a parsed expression. Raises ValueError for what is no calculation."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(f"{ast.unparse(node)} is no integer, and no +, - or *")
