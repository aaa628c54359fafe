"""Private API server for tests, and what runs beside it: stand-ins for kubelets, and Kueue."""
