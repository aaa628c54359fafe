"""Reads the history of a job in its state store and proves that nothing was lost and nothing trained on twice.

It asks the rows alone: neither the store's constraints nor the code that wrote them are trusted.
"""

from rljob_runtime.audit.findings import AuditResult, Finding, Rule
from rljob_runtime.audit.open_store import NoHistory, audit

__all__ = ["AuditResult", "Finding", "NoHistory", "Rule", "audit"]
