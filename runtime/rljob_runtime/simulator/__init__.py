"""Simulator: the real coordinator under virtual time.

Machines, engines, relays, trainer, rewards, operator and faults are simulated.
"""
