"""Screen: console of all commands.

Messages, paths and names of models contain text of others. Text in brackets is not a style, and `:name:` is not an
emoji. A line stays one line in any terminal width.
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
