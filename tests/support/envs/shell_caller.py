"""Shell caller: the toy caller with another tool, the shell of coding agents, in place of its calculator.

In every turn it lets the shell calculate a random expression. The third command of an episode says that the task is
done, as mini-swe-agent expects it.
"""

from __future__ import annotations

from pathlib import Path

from rljob_runtime.models.toy import save_taught
from rljob_runtime.models.toy_calculator import calculator_tokenizer
from rljob_runtime.models.toy_caller import SEED, followers, written

TURNS = 3
DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SHELL = '<tool_call>{"name": "bash", "arguments": {"command": "echo $(('
SUMS = "$HOME/sums"
SHELL_END = f")) >> {SUMS}; test $(wc -l < {SUMS}) -lt {TURNS} && tail -n 1 {SUMS} || echo {DONE}" + '"}}</tool_call>'
"""The beginning and the end of a call, each one token."""


def shell_caller(folder: Path) -> str:
    """Write the model into a new folder; return it as the source of a model."""
    from tokenizers import AddedToken

    tokenizer = calculator_tokenizer()
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in (SHELL, SHELL_END)])
    folder.mkdir()
    save_taught(folder, SEED, lambda: written(tokenizer, followers(SHELL, SHELL_END)))
    return str(folder)
