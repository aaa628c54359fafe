"""Engines: generate tokens with vLLM, with rank processes, or with a small reference engine."""
