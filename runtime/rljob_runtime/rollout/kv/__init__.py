"""KV transfer: keys and values of unfinished responses, from the engines of one layout to those of the next."""
