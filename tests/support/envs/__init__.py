"""Stand-ins for the tests of the environments' runner: a gateway with a scripted model, MCP servers, harnesses."""
