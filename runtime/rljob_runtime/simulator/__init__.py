"""The real coordinator under virtual time: simulated machines, engines, relays, trainer, rewards, operator and
faults."""
