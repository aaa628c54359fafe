"""Rules: validation across fields, in Python. `job` has the entry points."""
