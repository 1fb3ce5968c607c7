"""One consumer process of the demo: a member of the group that works through batches and tells its parent about it.

Started by ``demo/__main__.py``. It writes one JSON object a line to standard output, and closes when its standard input
does, which is also what happens when the parent dies.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time

from cursus_consumer import Batch, ClosedError, Consumer, RebalancingError


def tell(event: str, **facts: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--work-ms", type=float, default=0.0, help="how long a batch takes to process")
    options = parser.parse_args()

    consumer = Consumer(
        brokers=options.brokers.split(","),
        topic=options.topic,
        group_id=options.group,
        consumer_id="demo",
        enable_auto_commit=False,
        heartbeat_interval_ms=200,
        max_poll_records=500,
    )

    def close_with_stdin() -> None:
        sys.stdin.read()
        consumer.close()

    threading.Thread(target=close_with_stdin, daemon=True).start()
    with consumer:
        work(consumer, options.work_ms / 1000)
    tell("closed", state=str(consumer.state))


def work(consumer: Consumer, seconds: float) -> None:
    owned: list[int] = []
    while True:
        try:
            batch = consumer.poll(timeout=0.2)
            now_owned = sorted(tp.partition for tp in consumer.assignment())
            if now_owned != owned and consumer.state == "running":
                owned = now_owned
                tell("assigned", partitions=owned)
            if not batch:
                continue
            time.sleep(seconds)
            read: dict[int, list[int]] = {}
            for record in batch:
                read.setdefault(record.partition, []).append(record.offset)
            # From here on the records count as processed, whatever becomes of the commit.
            tell("processed", offsets={p: [o[0], o[-1], len(o)] for p, o in read.items()})
            commit(consumer, batch)
        except RebalancingError as error:
            tell("rebalanced", partitions=sorted(tp.partition for tp in error.stale))
        except ClosedError:
            return


def commit(consumer: Consumer, batch: Batch) -> None:
    """Commits, or says that it came too late: whoever has the partitions now processes these records again."""
    try:
        consumer.commit(batch)
    except RebalancingError as error:
        tell("refused", partitions=sorted(tp.partition for tp in error.stale), records=len(batch))


if __name__ == "__main__":
    main()
