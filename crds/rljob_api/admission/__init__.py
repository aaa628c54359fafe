"""Admission: from a text to a job or its mistakes, and what may change in an existing one."""
