"""Failure: which machines are lost, why, and when they are replaced."""
