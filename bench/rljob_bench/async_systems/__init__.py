"""A model of asynchronous training at the size of Laminar's evaluation: whole clusters, response by response, engines
as `perf_model` has them. The systems that the paper compares, and RLJob's own policies, on the same accelerators."""
