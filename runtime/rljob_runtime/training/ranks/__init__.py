"""Ranks: the trainer's processes, one by one and as one group."""
