"""Programs of a cluster: what is built, from which sources, and how."""
