"""Loans: when rollout machines are loaned to the trainer, and which."""
