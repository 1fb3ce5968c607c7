"""The package has everything that the core's tables have, and says the same in its stubs as in its code."""

import ast
import dataclasses
import importlib.metadata
import inspect
import pickle
from pathlib import Path
from typing import get_type_hints

import cursus_consumer
import pytest
from cursus_consumer import (
    BrokerFailure,
    ConsumerSettings,
    CursusError,
    InternalError,
    MaxPollIntervalError,
    PartitionStatistics,
    RebalancingError,
    State,
    Statistics,
    TopicPartition,
    _native,
    errors,
    testing,
)

TABLE = _native._error_table()


@pytest.mark.parametrize(("number", "code", "name", "retryable", "fatal"), TABLE, ids=[row[2] for row in TABLE])
def test_every_error_has_its_class(number: int, code: str, name: str, retryable: bool, fatal: bool) -> None:
    error_class = getattr(errors, name)
    assert issubclass(error_class, CursusError)
    assert (error_class.number, error_class.code) == (number, code)
    assert (error_class.retryable, error_class.fatal) == (retryable, fatal)
    assert error_class.__doc__
    assert getattr(cursus_consumer, name) is error_class
    assert name in errors.__all__ and name in cursus_consumer.__all__
    with pytest.raises(error_class, match="said why") as caught:
        _native._raise_error(number, "said why")
    assert type(caught.value) is error_class
    assert caught.value.broker is None


def test_no_class_is_without_its_row() -> None:
    classes = {cls.__name__ for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, CursusError)}
    assert classes - {"CursusError"} == {row[2] for row in TABLE}


def test_a_panic_is_an_ordinary_exception(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InternalError, match="please report it: a number of the table") as caught:
        _native._raise_error(999, "")
    assert isinstance(caught.value, Exception)
    capfd.readouterr()  # Where it happened is Rust's own message, which nobody can raise.


def test_errors_pickle() -> None:
    broker = BrokerFailure("GEN_MISMATCH", "fencing", True, {"current": "3"})
    stale = [TopicPartition("orders", 1)]
    copy = pickle.loads(pickle.dumps(RebalancingError("moved", broker=broker, stale=stale)))
    assert (str(copy), copy.broker, copy.stale, copy.owned) == ("moved", broker, stale, [])
    late = pickle.loads(pickle.dumps(MaxPollIntervalError("too late", stale=stale)))
    assert (str(late), late.broker, late.stale) == ("too late", None, stale)


def test_every_setting_has_its_type() -> None:
    assert list(get_type_hints(ConsumerSettings)) == _native._setting_names()
    assert ConsumerSettings.__required_keys__ == {"brokers", "topic"}


def test_every_statistic_has_its_field() -> None:
    consumer, partition = _native._statistic_names()
    assert [field.name for field in dataclasses.fields(Statistics)] == consumer
    assert [field.name for field in dataclasses.fields(PartitionStatistics)] == partition


def test_states_are_texts() -> None:
    assert [str(state) for state in State] == ["new", "running", "rebalancing", "closing", "closed"]
    assert "running" in {State.RUNNING} and f"{State.RUNNING}" == "running"


def test_the_version_is_the_distribution_s() -> None:
    assert cursus_consumer.__version__ == importlib.metadata.version("cursus-consumer")


def test_everything_public_is_there_and_documented() -> None:
    for module in (cursus_consumer, errors, testing):
        assert sorted(module.__all__) == module.__all__
        for name in module.__all__:
            assert inspect.getdoc(getattr(module, name)) or name == "__version__", f"{name} says nothing"


def test_the_stub_documents_what_the_code_documents() -> None:
    package = Path(cursus_consumer.__file__).parent
    assert (package / "py.typed").exists()
    stub = ast.parse((package / "_native.pyi").read_text())

    def compare(nodes: list[ast.stmt], owner: object) -> int:
        compared = 0
        for node in nodes:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef):
                continue
            # Of its own methods with a special name Python says what it says of everybody's.
            if (documented := ast.get_docstring(node)) and not node.name.startswith("__"):
                said = inspect.getdoc(getattr(owner, node.name)) or ""
                assert said.split() == documented.split(), f"{owner}.{node.name} says otherwise"
                compared += 1
            if isinstance(node, ast.ClassDef):
                compared += compare(node.body, getattr(owner, node.name))
        return compared

    assert compare(stub.body, _native) > 75
