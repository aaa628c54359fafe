"""Every decision of the data plane, pure: no I/O, no clock, no Ray, no torch."""
