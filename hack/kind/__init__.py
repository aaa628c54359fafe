"""kind: a Docker engine of its own, and a node image made from scratch, where no image registry is reached."""
