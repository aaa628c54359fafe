"""Samples: what the model answered, round by round, with rewards and outcomes, for people to read."""

from rljob_runtime.samples.choice import Candidate, choose
from rljob_runtime.samples.files import SampleFolder, TornFile
from rljob_runtime.samples.record import Sample, SampleOutcome

__all__ = ["Candidate", "Sample", "SampleFolder", "SampleOutcome", "TornFile", "choose"]
