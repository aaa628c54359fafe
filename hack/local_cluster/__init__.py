"""A Kubernetes cluster on one machine, without Docker: see docs/guides/local-cluster.md.

Only the standard library is imported here, so that the cluster comes up before any virtual environment exists.
"""
