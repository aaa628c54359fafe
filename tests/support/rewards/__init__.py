"""Reward functions. Workers load them by their bare name, from this folder."""
