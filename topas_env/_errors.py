"""The errors that a user may cause."""

__all__ = ["InfeasibleDecision", "InputError"]


class InputError(ValueError):
    """Bad input. The message is one line that names the file, the path in it and the value."""


class InfeasibleDecision(ValueError):  # noqa: N818 (the name says what it is)
    """A decision that breaks a constraint of the snapshot (SNAPSHOT.md, section Decision).

    Attributes:
        constraint: The violated constraint, in words.
        left: What the decision asks for (tokens, requests, or a name).
        right: What the snapshot allows.
    """

    def __init__(self, constraint: str, left: object, right: object) -> None:
        """Stores the constraint and both its sides and writes the message from them."""
        super().__init__(f"infeasible decision: {constraint}: {_cut(left)} against {_cut(right)}")
        self.constraint = constraint
        self.left = left
        self.right = right

    def __reduce__(self) -> tuple[type["InfeasibleDecision"], tuple[str, object, object]]:
        """Pickles by the three arguments, so that worker processes can raise it."""
        return type(self), (self.constraint, self.left, self.right)


def _cut(side: object, limit: int = 80) -> str:
    """Writes one side of a constraint on one line, cut after `limit` characters."""
    text = ascii(side) if isinstance(side, list) else str(side)
    return text if len(text) <= limit else text[: limit - 3] + "..."
