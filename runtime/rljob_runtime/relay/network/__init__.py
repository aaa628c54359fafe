"""Network: connections between relays, with frames and an authenticated handshake."""
