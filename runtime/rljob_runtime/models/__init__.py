"""Where models come from: every source ends as a local Hugging Face folder."""
