"""Link: the connection between the gateway's process and the coordinator, on a Unix socket."""
