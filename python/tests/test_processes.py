"""Forks, and interpreters that end with a consumer in the middle of something."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cursus_consumer.testing import EmbeddedCluster
from support import PATIENCE, run_python

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

CHILD = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Newer Pythons warn of forks beside threads, which these are.

def in_child(run):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            run()
            sys.stdout.flush()
            os._exit(0)
        except BaseException as error:
            print("in the child:", repr(error), flush=True)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0

def refused(call):
    try:
        call()
    except ForkedError as error:
        assert "make a new one here" in str(error), error
    else:
        raise AssertionError("it isn't refused")
"""


@forks
def test_a_child_can_not_use_what_it_inherited_and_does_not_harm_the_parent(cluster: EmbeddedCluster) -> None:
    cluster.fill("orders", 40, 10)
    output = run_python(
        CHILD
        + """
import gc
consumer = Consumer(brokers=sys.argv[1].split(","), **SETTINGS, max_poll_records=5)
batch = consumer.poll(timeout=10)
records, batches = iter(consumer), consumer.batches()
pending = consumer.commit_async({0: 0})
consumer.on_assigned(print)

def child():
    global consumer, records, batches, pending, inherited
    for call in (
        consumer.poll, consumer.start, consumer.commit, consumer.close, consumer.stats, consumer.assignment,
        consumer.batches, consumer.__enter__, batch.owned, lambda: consumer.state, lambda: consumer.fatal_error,
        lambda: consumer.commit(batch), lambda: consumer.committed(0), lambda: consumer.position(0),
        lambda: consumer.owned(batch), lambda: iter(consumer), lambda: next(records), lambda: next(batches),
        consumer.commit_async, lambda: consumer.ack(batch[0]), lambda: consumer.seek(0, 0),
        lambda: consumer.pause(0), lambda: consumer.resume(0), consumer.paused, lambda: consumer.assign([0]),
        consumer.begin_offsets, consumer.end_offsets, consumer.lag, consumer.subscription, consumer.group_metadata,
        consumer.describe_group, lambda: consumer.on_assigned(print), lambda: consumer.on_revoked(print),
        pending.done, pending.result,
    ):
        refused(call)
    for inherited in (consumer, pending):
        assert repr(inherited).endswith("of another process>"), repr(inherited)
    assert all(record.value for record in batch), "bytes are only bytes"
    del consumer, records, batches, pending, inherited
    gc.collect()

in_child(child)
pending.result(timeout=10)
seen = {(record.partition, record.offset) for record in batch}
while len(seen) < 40:
    seen.update((record.partition, record.offset) for record in consumer.poll(timeout=10))
assert consumer.stats().reconnects == 0, consumer.stats()
consumer.close()
print("well")
""",
        ",".join(cluster.brokers),
    )
    assert output == "well"


@forks
def test_a_child_makes_consumers_of_its_own(cluster: EmbeddedCluster) -> None:
    cluster.fill("orders", 40, 10)
    output = run_python(
        CHILD
        + """
brokers = sys.argv[1].split(",")

def read(group):
    seen = set()
    with Consumer(brokers=brokers, **{**SETTINGS, "group_id": group}) as consumer:
        while len(seen) < 40:
            seen.update((record.partition, record.offset) for record in consumer.poll(timeout=10))

def child():
    read("child")
    in_child(lambda: read("grandchild"))

consumer = Consumer(brokers=brokers, **SETTINGS)
consumer.start(timeout=10)
in_child(child)
read("parent")
consumer.close()
print("well")
""",
        ",".join(cluster.brokers),
    )
    assert output == "well"


@forks
def test_forks_beside_busy_consumers(cluster: EmbeddedCluster) -> None:
    cluster.fill("orders", 20_000, 10)
    output = run_python(
        CHILD
        + """
import threading
consumer = Consumer(brokers=sys.argv[1].split(","), **SETTINGS, max_poll_records=10)
seen = set()

def read():
    while len(seen) < 20_000:
        seen.update((record.partition, record.offset) for record in consumer.poll(timeout=10))

reading = threading.Thread(target=read)
reading.start()
for _ in range(20):
    in_child(lambda: refused(consumer.poll))
reading.join()
consumer.close()
print("well")
""",
        ",".join(cluster.brokers),
    )
    assert output == "well"


@forks
def test_a_child_that_ends_like_any_program_is_silent_and_leaves_the_parent_in_the_group(
    cluster: EmbeddedCluster,
) -> None:
    cluster.fill("orders", 40, 10)
    output = run_python(
        CHILD
        + """
consumer = Consumer(brokers=sys.argv[1].split(","), **SETTINGS, max_poll_records=5)
batch = consumer.poll(timeout=10)
member = consumer.stats().member
sys.stdout.flush()
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
time.sleep(0.2)
consumer.commit(batch, timeout=10)
assert consumer.stats().member == member and consumer.stats().rebalances == 0
consumer.close()
print("well")
""",
        ",".join(cluster.brokers),
    )
    assert output == "well"


@forks
def test_a_child_can_not_use_a_cluster(cluster: EmbeddedCluster) -> None:
    output = run_python(
        CHILD
        + """
from cursus_consumer.testing import EmbeddedCluster
cluster = EmbeddedCluster()
hold = cluster.hold("CONSUME")

def child():
    for call in (lambda: cluster.brokers, cluster.stop, cluster.__enter__, hold.release):
        refused(call)
    assert repr(cluster) == "<EmbeddedCluster of another process>"
    with EmbeddedCluster() as own:
        own.create_topic("orders", 1)
        own.produce("orders", ["x"])
        with Consumer(brokers=own.brokers, **SETTINGS) as consumer:
            assert len(consumer.poll(timeout=10)) == 1

in_child(child)
cluster.create_topic("orders", 1)
cluster.produce("orders", ["x"])
with Consumer(brokers=cluster.brokers, **SETTINGS) as consumer:
    hold.release()
    assert len(consumer.poll(timeout=10)) == 1
cluster.stop()
print("well")
"""
    )
    assert output == "well"


MULTIPROCESSING = """
import multiprocessing, sys, warnings
from cursus_consumer import Consumer
warnings.simplefilter("ignore", DeprecationWarning)

def read(brokers, group):
    seen = set()
    with Consumer(brokers=brokers, topic="orders", group_id=group) as consumer:
        while len(seen) < 40:
            seen.update((record.partition, record.offset) for record in consumer.poll(timeout=10))
    return len(seen)

if __name__ == "__main__":
    brokers = sys.argv[1].split(",")
    read(brokers, "parent")
    with multiprocessing.get_context(sys.argv[2]).Pool(2) as pool:
        print(pool.starmap(read, [(brokers, f"worker-{i}") for i in range(4)]))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_pool(cluster: EmbeddedCluster, tmp_path: Path, method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"there is no {method} here")
    cluster.fill("orders", 40, 10)
    program = tmp_path / "program.py"
    program.write_text(MULTIPROCESSING)
    command = [sys.executable, "-W", "error", str(program), ",".join(cluster.brokers), method]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE * 2, check=False)
    assert (ended.stderr, ended.returncode, ended.stdout.strip()) == ("", 0, "[40, 40, 40, 40]")


EXITS = {
    "new": "",
    "started": "consumer.start(timeout=10)",
    "joining": "consumer.poll(timeout=0)",
    "reading": "consumer.poll(timeout=10)",
    "in an iteration": "next(records := iter(consumer))",
    "closing": "consumer.start(timeout=10); consumer.close(timeout=0)",
    "raising": "consumer.poll(timeout=10); sys.exit(0)",
    "polled by a daemon": """
import threading
def read():
    while True:
        consumer.poll(timeout=0.01)
threading.Thread(target=read, daemon=True).start()
consumer.start(timeout=10)
time.sleep(0.1)
""",
    "iterated by daemons": """
import threading
consumers = [Consumer(brokers=sys.argv[1].split(","), **SETTINGS) for _ in range(2)]
def read(consumer):
    for record in consumer: pass
for each in consumers: threading.Thread(target=read, args=(each,), daemon=True).start()
consumer.start(timeout=10)
""",
    "in a cycle": """
consumer.poll(timeout=10)
class Cycle: pass
cycle = Cycle()
cycle.own = (cycle, consumer)
""",
    "closed at exit": "import atexit; consumer.start(timeout=10); atexit.register(consumer.close)",
    "polled at exit": "import atexit; consumer.start(timeout=10); atexit.register(consumer.poll, 0)",
    "with a cluster": "from cursus_consumer.testing import EmbeddedCluster; cluster = EmbeddedCluster()",
}


@pytest.mark.parametrize("what", EXITS.values(), ids=EXITS)
def test_an_exit_without_close_is_silent(cluster: EmbeddedCluster, what: str) -> None:
    cluster.fill("orders", 1000, 100)
    run_python(f'consumer = Consumer(brokers=sys.argv[1].split(","), **SETTINGS)\n{what}', ",".join(cluster.brokers))


@pytest.mark.parametrize("what", ["consumer.poll(timeout=0.2)", "consumer.poll(timeout=0)", ""])
def test_an_exit_with_the_cluster_down_is_silent(what: str) -> None:
    run_python(f'consumer = Consumer(brokers="127.0.0.1:1", **SETTINGS)\n{what}')


def test_many_exits_in_the_middle_of_reading(cluster: EmbeddedCluster) -> None:
    cluster.fill("orders", 200_000, 100)
    for turn in range(10):
        run_python(
            f"""
import threading
consumer = Consumer(brokers=sys.argv[1].split(","), **SETTINGS)
threading.Thread(target=lambda: [None for _ in consumer], daemon=True).start()
consumer.start(timeout=10)
time.sleep({turn} / 200)
""",
            ",".join(cluster.brokers),
        )
