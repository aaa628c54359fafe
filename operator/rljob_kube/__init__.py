"""A small client of the Kubernetes REST API: raw JSON in and out, bounded in time, measured."""
