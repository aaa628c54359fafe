"""Asynchronous scheduling: groups, the experience buffer, which replica gets what, and repack (Laminar)."""
