"""Readers: what the operator reads of the cluster: a job and its pods, nodes, Leases, and the kinds that it creates."""
