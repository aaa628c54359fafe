"""Library: clusters, experiments, settings and results that several benchmarks share."""
