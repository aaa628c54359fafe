"""Asynchronous mode: generation and training run concurrently, with a bound on staleness."""
