"""Trainers, ranks and gradient units, small enough for a processor."""
