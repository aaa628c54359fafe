"""kind on a machine that reaches no image registry: a Docker engine of its own, and a node image made from scratch."""
