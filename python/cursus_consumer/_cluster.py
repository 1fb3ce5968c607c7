"""The embedded cluster's commands. Generated from the core's tables by `make generate`: change those instead."""

from cursus_consumer import _native


class ClusterCommands(_native.EmbeddedCluster):
    """The commands that the cluster's control port has too."""

    __slots__ = ()

    def stop_broker(self, broker: int) -> None:
        """Stops a broker as SIGTERM does: what its connections are at is finished."""
        self._call("stop_broker", broker=broker)

    def kill_broker(self, broker: int) -> None:
        """Kills a broker: connections are cut, replies in flight are lost."""
        self._call("kill_broker", broker=broker)

    def restart_broker(self, broker: int) -> None:
        """Starts a broker again, on the port it had."""
        self._call("restart_broker", broker=broker)

    def pause_broker(self, broker: int) -> None:
        """Pauses a broker as SIGSTOP does: nothing in it moves, and it can still be connected to."""
        self._call("pause_broker", broker=broker)

    def resume_broker(self, broker: int) -> None:
        """Lets a paused broker go on where it was."""
        self._call("resume_broker", broker=broker)

    def advance(self, by_ms: int) -> None:
        """Puts the clock of the brokers forward; members have expired and leaders are elected once it returns."""
        self._call("advance", by_ms=by_ms)

    def delay(self, delay_ms: int, broker: int | None = None) -> None:
        """Writes every reply of one broker, or of all, this much later, in order, until set to 0."""
        self._call("delay", delay_ms=delay_ms, broker=broker)

    def cut_connections(self, broker: int | None = None) -> None:
        """Cuts all connections of one broker, or of all, at once; new ones are accepted."""
        self._call("cut_connections", broker=broker)

    def close_streams(self, reason: str) -> None:
        """Ends all open streams with a control frame of this reason, as `timeout`, `stopped` or `error`."""
        self._call("close_streams", reason=reason)

    def freeze_connections(self, broker: int | None = None) -> None:
        """Silences all connections of one broker, or of all, for ever, without closing them; new ones work."""
        self._call("freeze_connections", broker=broker)

    def advertise(self, broker: int, address: str | None = None) -> None:
        """Lets brokers name this `host:port` for a broker; without one, where it listens again."""
        self._call("advertise", broker=broker, address=address)

    def swap_addresses(self, a: int, b: int) -> None:
        """Lets two brokers listen where the other did; their connections are cut."""
        self._call("swap_addresses", a=a, b=b)

    def create_topic(self, name: str, partitions: int) -> None:
        """Makes a topic, or gives an existing one more partitions."""
        self._call("create_topic", name=name, partitions=partitions)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic with its records; groups keep their members and offsets."""
        self._call("delete_topic", name=name)

    def append_marker(self, topic: str, partition: int) -> int:
        """Writes a transaction's control record, which committed readers don't see; the offset behind it."""
        answer: int = self._call("append_marker", topic=topic, partition=partition)
        return answer

    def fill(self, topic: str, count: int, value_size: int) -> None:
        """Writes `count` records of `value_size` bytes, dealt out over all partitions in turn; keys from `0` on."""
        self._call("fill", topic=topic, count=count, value_size=value_size)

    def delete_records(self, topic: str, partition: int, earliest: int) -> None:
        """Forgets the records of a partition below `earliest`, as retention does."""
        self._call("delete_records", topic=topic, partition=partition, earliest=earliest)

    def end_offsets(self, topic: str) -> dict[int, int]:
        """The offset behind the last record by partition; empty where there is no such topic."""
        answer: dict[str, int] = self._call("end_offsets", topic=topic)
        return {int(partition): offset for partition, offset in answer.items()}

    def move_leader(self, topic: str, partition: int, broker: int) -> None:
        """Makes another broker a partition's leader, under the next epoch."""
        self._call("move_leader", topic=topic, partition=partition, broker=broker)

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition, running or not."""
        answer: int = self._call("leader", topic=topic, partition=partition)
        return answer

    def move_coordinator(self, group: str, broker: int) -> None:
        """Makes another broker a group's coordinator."""
        self._call("move_coordinator", group=group, broker=broker)

    def coordinator(self, group: str) -> int:
        """The broker that coordinates a group, running or not."""
        answer: int = self._call("coordinator", group=group)
        return answer

    def expire_member(self, group: str, member: str) -> None:
        """Expires a member now, as if its session had ended."""
        self._call("expire_member", group=group, member=member)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """What a group has committed in a topic: the next offset to read by partition."""
        answer: dict[str, int] = self._call("committed", group=group, topic=topic)
        return {int(partition): offset for partition, offset in answer.items()}

    def fail_next(self, command: str, times: int, error: str) -> None:
        """Answers the next `times` of a command with `ERROR: ` and this text instead of carrying them out."""
        self._call("fail_next", command=command, times=times, error=error)

    def lose_reply(self, command: str, times: int = 1) -> None:
        """Carries out the next `times` of a command and cuts the connection instead of replying."""
        self._call("lose_reply", command=command, times=times)

    def corrupt_next(self, command: str, times: int = 1) -> None:
        """Carries out the next `times` of a command and damages the replies."""
        self._call("corrupt_next", command=command, times=times)

    def repeat_reply(self, command: str, times: int = 1) -> None:
        """Carries out the next `times` of a command and sends each reply twice."""
        self._call("repeat_reply", command=command, times=times)

    def clear_requests(self) -> None:
        """Forgets the requests so far."""
        self._call("clear_requests")
