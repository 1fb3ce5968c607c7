"""Steps that command the cluster, write to it, and wait for what it has seen."""

from cursus_consumer import CursusError
from cursus_consumer.testing import TransactionalWriter

from case_runner.cases import Arguments, Mistake, becomes, by_partition, equal, exchange, value, within
from case_runner.world import World


class ClusterSteps(World):
    """What is done to the cluster, and asked of it."""

    def do_create_topic(self, step: Arguments) -> None:
        self.cluster.create_topic(step["topic"], step["partitions"])

    def do_delete_topic(self, step: Arguments) -> None:
        self.cluster.delete_topic(step["topic"])

    def do_produce(self, step: Arguments) -> None:
        topic = step.get("topic", "t")
        ends = self.cluster.end_offsets(topic)
        # A topic or partition that doesn't exist is reported by producing to it.
        for partition in [step["partition"]] if "partition" in step else ends or [0]:
            first = ends.get(partition, 0)
            offsets = range(first, first + step["count"])
            records = [(str(at), value(topic, partition, at, step.get("value_size", 0))) for at in offsets]
            self.cluster.produce(topic, records, partition)

    def do_delete_records(self, step: Arguments) -> None:
        self.cluster.delete_records(step.get("topic", "t"), step["partition"], step["earliest"])

    def do_stop_broker(self, step: Arguments) -> None:
        self.cluster.stop_broker(step["broker"])

    def do_kill_broker(self, step: Arguments) -> None:
        self.cluster.kill_broker(step["broker"])

    def do_restart_broker(self, step: Arguments) -> None:
        self.cluster.restart_broker(step["broker"])

    def do_pause_broker(self, step: Arguments) -> None:
        self.cluster.pause_broker(step["broker"])

    def do_resume_broker(self, step: Arguments) -> None:
        self.cluster.resume_broker(step["broker"])

    def do_advance(self, step: Arguments) -> None:
        self.cluster.advance(step["by_ms"])

    def do_swap_addresses(self, step: Arguments) -> None:
        self.cluster.swap_addresses(step["a"], step["b"])

    def do_freeze_connections(self, step: Arguments) -> None:
        self.cluster.freeze_connections(step.get("broker"))

    def do_close_streams(self, step: Arguments) -> None:
        self.cluster.close_streams(step["reason"])

    def do_append_marker(self, step: Arguments) -> None:
        self.cluster.append_marker(step.get("topic", "t"), step["partition"])

    def do_append_aborted(self, step: Arguments) -> None:
        topic, partition = step.get("topic", "t"), step["partition"]
        first = self.cluster.end_offsets(topic).get(partition, 0)
        offsets = range(first, first + step["count"])
        self.cluster.append_aborted(topic, [(str(at), value(topic, partition, at, 0)) for at in offsets], partition)

    def do_transact(self, step: Arguments) -> None:
        name, topic = step.get("id", "writer"), step.get("topic", "t")
        if name not in self.writers:
            self.writers[name] = TransactionalWriter(self.cluster.brokers, name, timeout=within({}))
        writer, ends = self.writers[name], self.cluster.end_offsets(topic)
        writer.begin()
        for partition, count in by_partition(step["records"]).items():
            first = ends.get(partition, 0)
            for at in range(first, first + count):
                writer.publish(topic, value(topic, partition, at, 0), key=str(at), partition=partition)
        if step.get("abort", False):
            writer.abort()
            return
        try:
            if "offsets_of" in step:
                batch = self.batches[step["offsets_of"]]
                metadata = batch.group_metadata()
                if metadata is None:
                    raise Mistake("the batch is of no member")
                writer.send_offsets(metadata, batch.next_offsets())
            writer.commit()
        except CursusError as refusal:
            if "refused" not in step:
                raise
            for word in step["refused"]:
                if word not in str(refusal):
                    raise Mistake(f"the refusal doesn't say {word!r}: {refusal}") from refusal
            writer.abort()
        else:
            if "refused" in step:
                raise Mistake("it was committed, and should have been refused")

    def do_send(self, step: Arguments) -> None:
        text = self.filled_in(step["text"])
        # From the last one: `$a` is also how `$ab` begins.
        for name, found in sorted(self.remembered.items(), reverse=True):
            text = text.replace(f"${name}", str(found))
        reply = exchange(self.cluster.brokers[step.get("broker", 0)], text)
        if step["says"] not in reply:
            raise Mistake(f"the reply to {text!r} is {reply!r}")

    def do_move_coordinator(self, step: Arguments) -> None:
        self.cluster.move_coordinator(step.get("group", "g"), step["broker"])

    def do_move_leader(self, step: Arguments) -> None:
        self.cluster.move_leader(step.get("topic", "t"), step["partition"], step["broker"])

    def do_fail_next(self, step: Arguments) -> None:
        self.cluster.fail_next(step["command"], step.get("times", 1), self.filled_in(step["error"]))

    def do_lose_reply(self, step: Arguments) -> None:
        self.cluster.lose_reply(step["command"], step.get("times", 1))

    def do_corrupt_next(self, step: Arguments) -> None:
        self.cluster.corrupt_next(step["command"], step.get("times", 1))

    def do_hold(self, step: Arguments) -> None:
        if step["as"] in self.holds:
            raise Mistake(f"there is a hold {step['as']!r} already")
        self.holds[step["as"]] = self.cluster.hold(step["command"])

    def do_held(self, step: Arguments) -> None:
        hold = self.holds[step["hold"]]
        becomes(lambda: None if hold.is_reached() else "no request has come to be held", within(step))

    def do_release(self, step: Arguments) -> None:
        self.holds.pop(step["hold"]).release()

    def do_cut_connections(self, step: Arguments) -> None:
        self.cluster.cut_connections(step.get("broker"))

    def do_expire_member(self, step: Arguments) -> None:
        reader = self.reader(step["consumer"])
        member = reader.consumer.stats().member
        if member is None:
            raise Mistake(f"{step['consumer']!r} is no member yet")
        self.cluster.expire_member(reader.group, member)

    def do_clear_requests(self, step: Arguments) -> None:
        self.cluster.clear_requests()

    def do_group_committed(self, step: Arguments) -> None:
        group, expected = step.get("group", "g"), {int(key): offset for key, offset in step["offsets"].items()}

        def look() -> str | None:
            committed = self.cluster.committed(group, step.get("topic", "t"))
            return equal(f"what group {group!r} has committed", {key: committed.get(key) for key in expected}, expected)

        becomes(look, within(step))

    def do_group_members(self, step: Arguments) -> None:
        group = step.get("group", "g")

        def look() -> str | None:
            found = self.cluster.group(group)
            count = len(found.members) if found is not None else 0
            return equal(f"the count of members of group {group!r}", count, step["count"])

        becomes(look, within(step))

    def do_requests(self, step: Arguments) -> None:
        # A word that is no command's name would never be counted.
        self.cluster.fail_next(step["command"], 0, "")

        def look() -> str | None:
            count = sum(
                request.command == step["command"]
                and request.broker == step.get("broker", request.broker)
                and step.get("says", "") in request.text
                for request in self.cluster.requests()
            )
            return self.check(f"the count of {step['command']}", count, step["is"])

        becomes(look, within(step))
