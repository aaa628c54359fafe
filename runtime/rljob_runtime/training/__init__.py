"""GRPO training: one gradient made of raw sums that may be computed anywhere, normalised once."""
