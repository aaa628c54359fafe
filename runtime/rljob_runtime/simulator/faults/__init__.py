"""Faults: which faults a run has, and their application."""
