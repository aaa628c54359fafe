"""What can be wrong with a model source."""


class ModelError(ValueError):
    """The model cannot be used; the message says which source, what is wrong and what would be right."""
