"""Simulated engines: replicas, what they hold and how fast they generate."""
