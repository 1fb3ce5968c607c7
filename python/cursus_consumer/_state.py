"""Where a consumer is in its life."""

from enum import Enum


class State(str, Enum):
    """Where a consumer is in its life: `new -> running <-> rebalancing -> closing -> closed`."""

    NEW = "new"
    """Made, and not started: nothing was sent yet."""
    RUNNING = "running"
    """It has an assignment, an empty one included."""
    REBALANCING = "rebalancing"
    """It joins, or its assignment is being replaced."""
    CLOSING = "closing"
    """Close was called: commits are flushed and the group is left."""
    CLOSED = "closed"
    """Nothing of it runs any more."""

    def __str__(self) -> str:
        """Return the state's name, as in the other languages."""
        return self.value
