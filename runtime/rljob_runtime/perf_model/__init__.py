"""How fast an engine generates: latency law, memory, event model. Pure: no I/O, no clock; numpy where it pays."""
