"""Benchmarks on the simulator: the real coordinator, one technique after the other, on the same prompts."""
