"""Egress: the proxy through which runners of environments reach hosts by name."""
