"""Episodes: responses of several turns, whose environments run elsewhere."""
