"""A folder with a stand-in for the `verifiers` package: runners that begin there import it by that name."""
