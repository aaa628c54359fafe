"""Agents: programs and functions that ask the model by themselves."""
