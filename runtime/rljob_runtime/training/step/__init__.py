"""Step: one optimizer step from raw gradient sums."""
