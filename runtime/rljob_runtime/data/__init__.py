"""Data: the source of prompts, the order in which they are drawn, and their tokens."""

from rljob_runtime.data.errors import BadRecord, DataError
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.data.prompts import PromptSet, open_prompts

__all__ = ["BadRecord", "DataError", "Prompt", "PromptSet", "open_prompts"]
