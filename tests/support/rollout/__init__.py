"""Engines, and their requests."""
