"""Reference engine: a small transformer in plain torch with the contract of vLLM."""
