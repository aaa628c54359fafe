"""Parsing of what users write, before there are models: YAML as kubectl reads it, its depth, and the types of pod
fields."""
