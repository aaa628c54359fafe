"""Simulator: the real coordinator under virtual time, with simulated machines, engines, relays, trainer, rewards,
operator and faults.
"""
