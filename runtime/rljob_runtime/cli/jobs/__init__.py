"""Commands for jobs in a cluster: `rljob list`, `submit`, `logs`, `events`, `suspend` and `resume`."""

from rljob_runtime.cli.jobs.commands import events, list_jobs, resume, submit, suspend
from rljob_runtime.cli.jobs.logs import logs

__all__ = ["events", "list_jobs", "logs", "resume", "submit", "suspend"]
