"""Consume, process, produce, each record once: the twin of exactly_once.rs, for Python.

    python examples/exactly_once.py BROKERS INPUT OUTPUT GROUP TRANSACTIONAL_ID

A `read_committed` reader of the output sees the result of each record once, whenever this program is killed. Start it
again, with the same arguments.

- Results and offsets are one transaction: both are there or neither is. The consumer itself commits nothing.
- First fence, then join. A killed run may have left a commit on its way; beginning a transaction takes its right away
  or waits for it, so that what the group has committed can't change behind this program's back once it is looked up.
- The batch says whose it is: brokers refuse the transaction of an older generation than the group's, whose partitions
  somebody else may have by now.
- What was refused is not made good. A generation that is over never comes back, so that all else that was read under it
  is refused too, and the next one begins at what is committed. There is nothing to seek back to.
- Anything else ends the program, an unknown outcome included. To start again is what it can do best.

One transactional id is for one process: two of them fence each other. More in docs/transactions.md.
"""

import re
import sys
from contextlib import suppress

from cursus_consumer import Batch, BrokerResponseError, Consumer, MaxPollIntervalError, RebalancingError, Record
from cursus_consumer.testing import TransactionalWriter


def process(record: Record) -> str:
    """Make something of a record. The writer takes text, and keys that are one word."""
    return f"{record.partition}/{record.offset} {record.value.decode(errors='replace').upper()}"


def transact(writer: TransactionalWriter, batch: Batch, output: str) -> None:
    """Write what is made of a batch, and its offsets; both or neither."""
    member = batch.group_metadata()
    if member is None:  # An empty batch.
        return
    try:
        with writer.transaction() as transaction:
            transaction.send_offsets(member, batch.next_offsets())
            for record in batch:
                transaction.publish(output, process(record), key=record.key)
    except BrokerResponseError as error:
        # The group is at a later generation: what was read under this one isn't this member's any more. A broker that
        # has just started may say that it is at an earlier one, or deny the member: that passes, and what is committed
        # afterwards would leave out what was refused.
        current = re.search(r"\bGEN_MISMATCH .*?\bcurrent=(\d+)", str(error))
        if current is None or int(current[1]) <= member.generation:
            raise
    else:
        print(f"{len(batch)} records of generation {member.generation}", flush=True)


def main(brokers: str, topic: str, output: str, group: str, transactional_id: str) -> None:
    """Process until killed, or until nothing better can be done than to start again."""
    writer = TransactionalWriter(brokers.split(","), transactional_id)
    writer.begin()
    writer.abort()
    consumer = Consumer(
        brokers=brokers.split(","),
        topic=topic,
        group_id=group,
        enable_auto_commit=False,
        max_poll_records=50,  # A transaction is a batch.
        heartbeat_interval_ms=500,  # How soon a rebalance is noticed; until then transactions are refused.
    )
    with consumer:
        while True:
            try:
                batch = consumer.poll()
            except (RebalancingError, MaxPollIntervalError):
                continue
            transact(writer, batch, output)


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit("usage: exactly_once.py BROKERS INPUT OUTPUT GROUP TRANSACTIONAL_ID")
    with suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
