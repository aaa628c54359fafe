"""Views: a job's status, evaluations and switches as text for a terminal."""
