"""Peers: simulated machines, engines, relays, trainer, rewards and operator."""
