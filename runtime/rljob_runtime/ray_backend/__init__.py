"""Ray backend: the peers of the coordinator as Ray actors, and the Ray that they run on."""
