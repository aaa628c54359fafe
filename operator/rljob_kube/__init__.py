"""The Kubernetes client of operator, coordinator, command line and tools: JSON in and out, bounded in time, counted."""
