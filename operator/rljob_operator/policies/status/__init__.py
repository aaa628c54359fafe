"""Status: conditions, events and reasons that the operator reports."""
