"""Invariants: what holds in every simulated run, by mode."""
