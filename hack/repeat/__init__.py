"""Repeated tests: which ones depend on the timing of a loaded machine."""
