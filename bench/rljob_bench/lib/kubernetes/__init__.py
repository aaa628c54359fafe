"""Kubernetes: what benchmarks of the operator and of its clients share."""
