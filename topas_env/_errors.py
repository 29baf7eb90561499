"""The errors that a user may cause."""

__all__ = ["InputError"]


class InputError(ValueError):
    """Bad input. The message is one line that names the file, the path in it and the value."""
