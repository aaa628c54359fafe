"""Generation: what both modes share between replicas, rewards and the store."""
