"""Rollout: the replica of a machine, and the engines behind it: vLLM, and a small one in plain torch."""
