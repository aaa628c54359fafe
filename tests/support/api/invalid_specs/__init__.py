"""Bad specs, by the part of the spec."""

from tests.support.api.invalid_specs.case import Case
from tests.support.api.invalid_specs.cross_field import CROSS_FIELD
from tests.support.api.invalid_specs.environments import CALC, ECHO, ENVIRONMENT_CASES, VERIFIED
from tests.support.api.invalid_specs.fields import MISSING, NAMES, RANGES, SPELLING, TYPES, UNKNOWN
from tests.support.api.invalid_specs.layouts import ACCELERATORS, SWITCHES
from tests.support.api.invalid_specs.templates import TEMPLATES

__all__ = ["CALC", "CASES", "ECHO", "UNKNOWN", "VERIFIED", "Case"]

CASES = [
    *TYPES, *MISSING, *RANGES, *SPELLING, *NAMES, *UNKNOWN, *CROSS_FIELD, *ENVIRONMENT_CASES, *ACCELERATORS, *SWITCHES,
    *TEMPLATES,
]  # fmt: skip
