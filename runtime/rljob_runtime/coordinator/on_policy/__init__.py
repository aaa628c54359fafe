"""On-policy mode: a round generates with one weight version and is trained on at its end."""
