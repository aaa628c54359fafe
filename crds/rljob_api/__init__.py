"""RLJob API: models of spec and status, defaults and validation. `python -m rljob_api` prints the CRD."""

from rljob_api.admission.loading import load
from rljob_api.errors import FieldError, InvalidSpec
from rljob_api.spec import RLJob, RLJobSpec
from rljob_api.status import RLJobStatus

__all__ = ["FieldError", "InvalidSpec", "RLJob", "RLJobSpec", "RLJobStatus", "load"]
