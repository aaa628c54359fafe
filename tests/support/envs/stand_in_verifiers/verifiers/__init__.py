"""Stand-in for the `verifiers` package: as much of its surface as the runner uses."""
