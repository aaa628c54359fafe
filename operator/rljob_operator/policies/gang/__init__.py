"""Gang scheduling: the pods without which a job cannot begin are placed together."""
