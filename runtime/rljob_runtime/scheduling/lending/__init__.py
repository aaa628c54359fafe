"""Lending: when rollout machines are loaned to the trainer, and what it gains."""
