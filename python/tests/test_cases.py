"""What every language's consumer does alike: the cases of tests/cases, on this package."""

from pathlib import Path
from typing import Any

import pytest
from case_runner import FOLDER, Failure, check_shape, load, run_case

FILES = sorted((FOLDER / "data").iterdir())
WRONG = sorted((FOLDER / "wrong").iterdir())


def modes(path: Path) -> list[str]:
    """Give the modes to run a file in. What is wrong with the file is said when it runs."""
    try:
        return list(load(path).get("modes", ["polling"]))
    except (ValueError, AttributeError):
        return ["polling"]


CASES = [(path, mode) for path in FILES for mode in modes(path)]
passed: set[tuple[Path, str]] = set()


@pytest.mark.parametrize(("path", "mode"), CASES, ids=[f"{path.stem}-{mode}" for path, mode in CASES])
def test_case(path: Path, mode: str) -> None:
    case = load(path)
    check_shape(case)
    run_case(case, mode)
    passed.add((path, mode))


@pytest.mark.parametrize("path", WRONG, ids=[path.stem for path in WRONG])
def test_a_wrong_case_is_found_out(path: Path) -> None:
    wrong: dict[str, Any] = load(path)
    assert wrong.keys() <= {"why", "fails_at", "says", "case"}
    if "fails_at" in wrong:
        check_shape(wrong["case"])
        with pytest.raises(Failure) as failure:
            run_case(wrong["case"], "polling")
        message = str(failure.value)
        assert failure.value.step == wrong["fails_at"], message
        assert wrong["case"]["name"] in message
    else:
        with pytest.raises(ValueError) as refusal:
            check_shape(wrong["case"])
        message = str(refusal.value)
    for word in wrong["says"]:
        assert word in message


def test_every_file_is_a_case_that_ran(request: pytest.FixtureRequest) -> None:
    assert len(FILES) >= 25
    for path in FILES:
        assert path.suffix == ".json", f"{path} is no case"
    assert {path for path, _ in CASES} == set(FILES), "each file has a mode to run in"
    chosen = [item for item in request.session.items if item.name.startswith("test_case[")]
    if len(chosen) == len(CASES):
        assert passed == set(CASES)
