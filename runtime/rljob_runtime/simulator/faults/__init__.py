"""Faults: selection and application of faults."""
