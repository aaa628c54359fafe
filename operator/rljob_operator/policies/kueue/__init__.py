"""Kueue: the quota that a job requests, and whether it may have pods."""
