"""Mutants: wrong lines of code, and the tests that must fail with them.

``python -m hack.mutants`` tries them. They are listed in the files ``mutants*.py`` beside the tests of their package.
"""

from .mutant import BadMutant, Mutant

__all__ = ["BadMutant", "Mutant"]
