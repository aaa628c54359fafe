"""Parsing of a user's text before validation: YAML as kubectl reads it, its depth, and the types of pod fields."""
