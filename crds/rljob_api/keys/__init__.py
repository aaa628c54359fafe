"""Keys: signed claims, and the keys by which runners of environments are known."""
