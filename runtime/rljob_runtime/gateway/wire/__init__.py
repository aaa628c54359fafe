"""Wire: the requests and answers of OpenAI's chat completions and of vLLM's token protocol."""
