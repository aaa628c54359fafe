"""Optional APIs: what a cluster may or may not serve (pod groups, device claims, Kueue), read while the operator
runs."""
