"""Pods: which pods and other objects a job owns, and their manifests."""
