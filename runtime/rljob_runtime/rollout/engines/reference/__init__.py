"""Reference engine: a small transformer in plain torch with vLLM's contract."""
