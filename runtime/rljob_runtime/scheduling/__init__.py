"""Scheduling: every decision of the data plane, pure. No I/O, no clock, no Ray, no torch."""
