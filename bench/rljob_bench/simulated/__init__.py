"""Simulated benchmarks: the real coordinator under virtual time, one technique after the other, on the same prompts."""
