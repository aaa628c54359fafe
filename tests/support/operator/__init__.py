"""The operator: jobs, simulated clusters, and what stands in for kubelets and coordinators."""
