"""Model: the policy, its loading, packing, attention, sharding and optimizer."""
