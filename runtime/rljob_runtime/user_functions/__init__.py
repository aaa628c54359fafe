"""User functions: loads them, and names the place in the user's code where one fails."""
