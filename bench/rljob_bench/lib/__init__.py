"""Library: clusters, trials, settings and results that several benchmarks share."""
