"""Performance model: how fast an engine generates. Latency model, memory, event model; pure: no I/O, no clock."""
