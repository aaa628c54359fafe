"""Core: virtual time, network, events and tokens of a simulation."""
