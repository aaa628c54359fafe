"""Verifiers: environments of the `verifiers` package, which is installed beside the runner with its own pins."""
