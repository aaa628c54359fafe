"""Fleet: rollout machines, their membership, engine layouts and weights."""
