"""An API server with the CRD, and a namespace for each test."""

from tests.support.operator.fixtures import connection, operator, server  # noqa: F401
