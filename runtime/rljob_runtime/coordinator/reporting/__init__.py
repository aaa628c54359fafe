"""Reporting: status, metrics and the log of rounds."""
