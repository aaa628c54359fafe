"""Lifecycle: admission, drain, eviction and end of a job."""
