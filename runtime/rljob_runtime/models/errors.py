"""Model errors: faults of a model source."""


class ModelError(ValueError):
    """The model cannot be used.

    The message names the source, the fault and the expected form.
    """
