"""Loans: gradient workers on loaned rollout machines, and the intake of what they deliver."""
