"""Scaling: the number of rollout machines, their parallelism, and the target of the next round."""
