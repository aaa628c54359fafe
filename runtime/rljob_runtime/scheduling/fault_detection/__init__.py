"""Fault detection: missed heartbeats, stalls, processes and policies that fail again, and repair of the relay chain."""
