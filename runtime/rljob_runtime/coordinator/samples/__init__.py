"""Samples: writes the responses that the store keeps for people into files."""
