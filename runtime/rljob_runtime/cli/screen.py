"""Screen: where commands draw and print.

What is shown has parts that others wrote: messages, paths, names of models. Text in brackets is no style there, nor
`:name:` a picture. A line stays a line however narrow the terminal is.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


def screen() -> Console:
    """Make a console that shows text as it is written."""
    return Console(markup=False, emoji=False, highlight=False)


def say(console: Console, text: str, style: str = "") -> None:
    """Print one line, in a style."""
    console.print(Text(text, style=style), soft_wrap=True)
