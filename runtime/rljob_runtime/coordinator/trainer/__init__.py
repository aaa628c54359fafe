"""Trainer: the trainer as the coordinator sees it, with its checkpoints and published weights."""
