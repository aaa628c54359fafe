"""Evaluation: the coordinator's part. `scheduling.evaluation` decides."""
