"""What the tests share: clusters that move quickly, and consumers that are closed behind every test."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cursus_consumer import Consumer
from cursus_consumer.testing import EmbeddedCluster

MakeConsumer = Callable[..., Consumer]
MakeCluster = Callable[..., EmbeddedCluster]


@pytest.fixture
def make_cluster() -> Iterator[MakeCluster]:
    """Start clusters with short sessions, so that little has to be waited for."""
    clusters: list[EmbeddedCluster] = []

    def make(**options: Any) -> EmbeddedCluster:
        quick = {"session_timeout_ms": 3000, "expiry_check_ms": 50, "leader_election_ms": 50}
        cluster = EmbeddedCluster(**{**quick, **options})
        clusters.append(cluster)
        return cluster

    yield make
    for cluster in clusters:
        cluster.stop()


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> EmbeddedCluster:
    """Three brokers with the topic `orders` of four partitions."""
    cluster = make_cluster()
    cluster.create_topic("orders", 4)
    return cluster


@pytest.fixture
def group() -> str:
    """The group of this test's consumers."""
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_consumer(request: pytest.FixtureRequest, group: str) -> Iterator[MakeConsumer]:
    """Make consumers that notice things soon: of the test's cluster, topic and group where nothing else is said.

    One that is `alone` has no group.
    """
    consumers: list[Consumer] = []

    def make(**settings: Any) -> Consumer:
        if "brokers" not in settings:
            settings["brokers"] = request.getfixturevalue("cluster").brokers
        if not settings.pop("alone", False):
            settings.setdefault("group_id", group)
        quick: dict[str, Any] = {
            "topic": "orders",
            "heartbeat_interval_ms": 50,
            "fetch_wait_ms": 100,
            "retry_backoff_max_ms": 100,
            "connect_timeout_ms": 1000,
            "request_timeout_ms": 2000,
        }
        consumer = Consumer(**{**quick, **settings})
        consumers.append(consumer)
        return consumer

    yield make
    for consumer in consumers:
        consumer.close(timeout=1.0)


@pytest.fixture
def consumer(make_consumer: MakeConsumer) -> Consumer:
    """A consumer of `orders` that commits only what it is told."""
    return make_consumer(enable_auto_commit=False)


@pytest.fixture
def alone(make_consumer: MakeConsumer) -> Consumer:
    """A consumer of `orders` without a group."""
    return make_consumer(alone=True)
