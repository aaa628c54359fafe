"""Stand-in for `verifiers.v1.utils`."""
