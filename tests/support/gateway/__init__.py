"""Stand-ins for the gateway's tests: a light tokenizer with templates, and a coordinator with a recording engine."""
