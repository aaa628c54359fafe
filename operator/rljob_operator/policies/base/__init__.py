"""Base: the values that every policy reads and returns."""
