"""Checkpoint: the trainer's state on the volume, and the exported model."""
