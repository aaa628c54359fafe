"""Catalogue: what each condition, reason and event of an RLJob means. The reference page is written from it."""
