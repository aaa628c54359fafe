"""Tools: the kind of environment whose loop is built in: the model calls functions and MCP servers until it answers."""
