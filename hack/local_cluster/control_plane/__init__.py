"""Control plane of a cluster: its processes, its certificates and its DNS server."""
