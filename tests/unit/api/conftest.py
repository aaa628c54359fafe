"""An API server that knows RLJobs."""

from tests.support.api.fixtures import server  # noqa: F401
