"""Engines: what generates tokens; vLLM, rank processes, and a small reference engine."""
