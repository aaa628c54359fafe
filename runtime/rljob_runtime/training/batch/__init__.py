"""Batch: the responses of a step as rows, and their delivery to the trainer's ranks."""
