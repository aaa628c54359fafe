"""Manifests: the types of the Kubernetes objects that the operator makes.

They declare the fields that it sets or reads, and no others, so a misspelled field is an error of mypy. A user's
template may hold further fields. They pass through, and nothing reads them.

These modules do not postpone annotations: then `__required_keys__` would be wrong, and tests read it.
"""
