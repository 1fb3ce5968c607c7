"""What is known of a consumer group: who a consumer is in it, and who else is."""

from dataclasses import dataclass

from cursus_consumer._native import TopicPartition


@dataclass(frozen=True)
class GroupMetadata:
    """Who a consumer is in its group, under one assignment: what a transaction that commits offsets for it names."""

    group: str
    """The group."""
    topic: str
    """The topic that it reads."""
    member: str
    """The member's id, as the broker gave it."""
    generation: int
    """The group's generation."""


@dataclass(frozen=True)
class GroupMember:
    """A member of a group."""

    member: str
    """Its id, as the broker gave it."""
    partitions: list[TopicPartition]
    """What it reads; nothing where there are more members than partitions."""


@dataclass(frozen=True)
class PartitionDescription:
    """How far a group is in a partition."""

    member: str | None
    """The member that reads it; None where nobody does."""
    committed: int | None
    """The committed offset; None where none is, and the broker doesn't tell that from 0."""
    lag: int | None
    """How many offsets are behind the committed one; None where the partition's leader doesn't know the partition."""


@dataclass(frozen=True)
class GroupDescription:
    """A group, as its coordinator and the leaders of its topic describe it."""

    group: str
    """The group."""
    topic: str
    """The topic that it reads."""
    state: str
    """`Stable` with members, `Dead` without."""
    generation: int
    """Its generation."""
    members: list[GroupMember]
    """Its members."""
    partitions: dict[TopicPartition, PartitionDescription]
    """Every partition of the topic, those that nobody reads included."""
