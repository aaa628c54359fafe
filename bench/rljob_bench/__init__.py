"""Benchmarks: one module for each `rljob bench NAME`."""
