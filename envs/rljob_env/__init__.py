"""Runner of environments: leases episodes from a job's gateway, runs a harness, and reports the end of each.

It goes into any image: it needs Python and httpx, no inbound port and no token of Kubernetes.
"""

from rljob_env.failures import ToolServerFailed

__all__ = ["ToolServerFailed"]
