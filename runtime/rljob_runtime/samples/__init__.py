"""Samples: what the model answered, round by round, with rewards and outcomes, for people to read."""

from rljob_runtime.samples.choice import Candidate, choose
from rljob_runtime.samples.files import EvaluationSampleFolder, SampleFolder, TornFile, all_folders, delete_abandoned
from rljob_runtime.samples.lengths import LengthFolder, PromptLengths
from rljob_runtime.samples.record import Sample, SampleOutcome

__all__ = [
    "Candidate",
    "EvaluationSampleFolder",
    "LengthFolder",
    "PromptLengths",
    "Sample",
    "SampleFolder",
    "SampleOutcome",
    "TornFile",
    "all_folders",
    "choose",
    "delete_abandoned",
]
