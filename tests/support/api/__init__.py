"""Specs, and an API server that knows them."""
