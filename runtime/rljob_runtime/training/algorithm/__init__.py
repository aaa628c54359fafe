"""Algorithm: the policy loss and the group advantages."""
