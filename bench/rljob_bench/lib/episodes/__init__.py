"""Episodes: what benchmarks of agents share."""
