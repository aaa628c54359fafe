"""Fault detection: missed heartbeats, stalls, and repair of the relay chain."""
