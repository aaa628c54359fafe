"""Loans: gradient workers on loaned rollout machines, and the checks of what they deliver."""
