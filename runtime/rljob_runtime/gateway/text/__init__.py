"""Text: how messages become tokens, without encoding a sampled token again, and how sampled tokens become a reply."""
