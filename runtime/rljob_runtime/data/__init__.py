"""Data: the source of prompts, the order in which they are drawn, and their tokens."""

from rljob_runtime.data.errors import BadRecord, DataError
from rljob_runtime.data.job_prompts import EvaluationData, JobPrompts, open_prompts
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.data.prompts import PromptSet

__all__ = ["BadRecord", "DataError", "EvaluationData", "JobPrompts", "Prompt", "PromptSet", "open_prompts"]
