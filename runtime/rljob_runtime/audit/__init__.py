"""Audit: reads a job's history in its state store and proves that nothing was lost and nothing trained on twice.

It uses rows only: it trusts neither the store's constraints nor the code that wrote the rows.
"""

from rljob_runtime.audit.findings import AuditResult, Finding, Rule
from rljob_runtime.audit.open_store import NoHistory, audit

__all__ = ["AuditResult", "Finding", "NoHistory", "Rule", "audit"]
