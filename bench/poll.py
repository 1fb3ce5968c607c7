"""Read a topic once from Python and print what it took, as the Rust programs do."""

import argparse
import json
import resource
import time
from collections.abc import Callable

from cursus_consumer import Batch, Consumer

# A poll that finds nothing for so long means that something is broken.
PATIENCE = 10.0


class Meter:
    """A measurement in progress. It begins with the first records in hand, which therefore don't count."""

    def __init__(self) -> None:
        self.usage = resource.getrusage(resource.RUSAGE_SELF)
        self.begun = time.perf_counter()

    def stop(self, records: int) -> dict[str, float]:
        """Tell what it took since."""
        seconds = time.perf_counter() - self.begun
        before, now = self.usage, resource.getrusage(resource.RUSAGE_SELF)
        return {
            "records": records,
            "seconds": seconds,
            "user_seconds": now.ru_utime - before.ru_utime,
            "system_seconds": now.ru_stime - before.ru_stime,
            "page_faults": now.ru_minflt - before.ru_minflt,
            "waits": now.ru_nvcsw - before.ru_nvcsw,
        }


def poll(consumer: Consumer) -> Batch:
    """Take the next batch."""
    batch = consumer.poll(timeout=PATIENCE)
    if not batch:
        raise SystemExit(f"nothing came for {PATIENCE} s: {consumer.stats()}")
    return batch


def batches(consumer: Consumer, records: int) -> None:
    """Poll, and look at nothing but how many records there are."""
    while records > 0:
        records -= len(poll(consumer))


def values(consumer: Consumer, records: int) -> None:
    """Poll, and take every record's value."""
    while records > 0:
        batch = poll(consumer)
        for record in batch:
            _ = record.value
        records -= len(batch)


def iterate(consumer: Consumer, records: int) -> None:
    """Leave the polling to the consumer, and take every record's value."""
    for record in consumer:
        _ = record.value
        records -= 1
        if not records:
            break


PROGRAMS: dict[str, Callable[[Consumer, int], None]] = {"batches": batches, "values": values, "iterate": iterate}


def main() -> None:
    """Measure one program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--group", required=True)
    arguments = parser.parse_args()
    with Consumer(
        brokers=arguments.brokers.split(","),
        topic=arguments.topic,
        group_id=arguments.group,
        enable_auto_commit=False,
        fetch_batch_size=arguments.batch,
    ) as consumer:
        left = arguments.records - len(poll(consumer))
        meter = Meter()
        PROGRAMS[arguments.program](consumer, left)
        measured = meter.stop(left)
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
