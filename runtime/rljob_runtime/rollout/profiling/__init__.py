"""Profiling: measures how fast an engine generates."""
