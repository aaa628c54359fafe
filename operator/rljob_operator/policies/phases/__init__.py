"""Phases: the plan of a job that runs, is suspended or has ended."""
