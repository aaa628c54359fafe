"""Nodes of a cluster: real ones in namespaces of this machine, their images, volumes and network policies."""
