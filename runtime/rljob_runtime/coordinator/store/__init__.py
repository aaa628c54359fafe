"""Store: the job's state in SQLite, one transaction per method."""
