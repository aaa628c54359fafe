"""Models: every model source becomes a local Hugging Face folder."""
