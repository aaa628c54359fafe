"""Episodes: a trajectory of many turns, as a tree of given and sampled token spans."""
