"""Asynchronous systems: models of asynchronous training at the size of Laminar's evaluation.

They run whole clusters, response by response, with engines as `perf_model` has them: the systems that the paper
compares, and RLJob's own policies, on the same accelerators.
"""
