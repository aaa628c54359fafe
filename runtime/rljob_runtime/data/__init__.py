"""Prompts: where they come from, in which order they are drawn, and how they become tokens."""

from rljob_runtime.data.errors import BadRecord, DataError
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.data.prompts import PromptSet, open_prompts

__all__ = ["BadRecord", "DataError", "Prompt", "PromptSet", "open_prompts"]
