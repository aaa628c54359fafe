"""Optional APIs: pod groups, device claims and Kueue, which a cluster may not serve."""
