"""Adaptive tensor parallelism: whether a machine changes its tensor parallel size inside a generation stage (PAT)."""
