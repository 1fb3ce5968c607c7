#!/usr/bin/env python3
"""Put deliberate faults into a copy of the engine, one at a time, and see that the test named with each one fails.

A fault is a patch in `tests/faults`. Before the diff it says what a user would suffer, and in a line that begins with
"Test:" the command of the one test that has to notice. That test has to pass without the fault, and to fail with it by
an assertion or a panic of its own: a fault that doesn't apply or doesn't build, and a test that hangs or dies, prove
nothing.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAULTS = ROOT / "tests/faults"
# What is harmed is a copy. It is kept, with what was built of it, so that the next run compiles little.
TREE = ROOT / "target/faults/tree"
BUILD = ROOT / "target/faults/build"

# How long a test may take, in seconds. Each of them gives up by itself long before.
PATIENCE = 600

REFRESH = """\
To renew a patch: break the code again as the patch's first line says, write `git diff -U1` over its diff, leave the
lines before it, and undo the change with `git checkout`. Where the code that it harms is gone, so should the patch be.
Where nothing but the test is at fault, mend that, or name another."""


@dataclass
class Fault:
    """One patch: what it does, who has to notice, and what came of it."""

    name: str
    test: list[str]
    outcome: str = ""
    message: str = ""
    problems: list[str] = field(default_factory=list)

    @property
    def patch(self) -> Path:
        """The file with the diff."""
        return FAULTS / f"{self.name}.patch"

    @property
    def test_name(self) -> str:
        """The test by itself."""
        return self.test[-1]


def read(name: str) -> Fault:
    """Read a patch's header."""
    head = (FAULTS / f"{name}.patch").read_text().partition("\n--- ")[0]
    line = re.search(r"^Test: (cargo test .+ -- --exact \S+)$", head, re.MULTILINE)
    if not line or head.startswith("Test:"):
        sys.exit(
            f"tests/faults/{name}.patch doesn't begin with what a user would suffer and a line "
            '"Test: cargo test -p CRATE --lib|--test FILE -- --exact NAME"'
        )
    return Fault(name, shlex.split(line[1]))


def copy_tree() -> None:
    """Make the copy equal to the working tree. What is equal already isn't touched, so that cargo builds little."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    wanted = {Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()}
    for old in TREE.rglob("*"):
        if old.is_file() and old.relative_to(TREE) not in wanted:
            old.unlink()
    for name in wanted:
        content = (ROOT / name).read_bytes()
        copy = TREE / name
        if not copy.is_file() or copy.read_bytes() != content:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)


def apply(fault: Fault, *more: str) -> str:
    """Apply a patch to the copy. Returns what git has against it."""
    # The copy lies inside of a repository that it is no part of.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(TREE.parent)}
    command = ["git", "apply", *more, str(fault.patch)]
    done = subprocess.run(command, cwd=TREE, env=environment, capture_output=True, text=True, check=False)
    why = "; ".join(done.stderr.splitlines()) or f"git apply: exit code {done.returncode}"
    return why if done.returncode else ""


def cargo(command: list[str], patience: float | None = None) -> tuple[int | None, str]:
    """Run cargo in the copy. Returns its exit code, or nothing where it had to be stopped, and what it said."""
    environment = os.environ | {
        "CARGO_TARGET_DIR": str(BUILD),
        "CARGO_TERM_COLOR": "never",
        "RUST_BACKTRACE": "0",
    }
    process = subprocess.Popen(
        command,
        cwd=TREE,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=patience)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        # Also what cargo started, and also when this was interrupted.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def build(test: list[str]) -> str:
    """Build a test. Returns the first errors where that fails."""
    at = test.index("--")
    code, said = cargo([*test[:at], "--locked", "--quiet", "--no-run"])
    errors = [line for line in said.splitlines() if line.startswith("error")]
    return "" if code == 0 else "; ".join(errors[:2]) or said.strip()[-500:] or f"cargo: exit code {code}"


def run(test: list[str]) -> tuple[str, str]:
    """Run a test that is built. Returns "passed", "failed" or what else happened, and its own words where it failed."""
    at = test.index("--")
    code, said = cargo([*test[:at], "--locked", "--quiet", *test[at:]], PATIENCE)
    if code is None:
        return f"still running after {PATIENCE} s", ""
    counts = re.search(r"test result: \w+\. (\d+) passed; (\d+) failed", said)
    match (code, counts.groups() if counts else None):
        case (0, ("1", "0")):
            return "passed", ""
        case (101, ("0", "1")):
            return "failed", words(said, test[-1])
        case (_, ("0", "0")):
            return "there is no such test", ""
        case _:
            return f"it ended with exit code {code} and no result", ""


def words(said: str, name: str) -> str:
    """Find what the test's own panic says first."""
    panics = re.findall(r"^thread '(.*?)'.* panicked at .*:\n((?:.+\n){1,3})", said, re.MULTILINE)
    panics = [(thread, message.replace(f"{TREE}/", "")) for thread, message in panics]
    own = [message for thread, message in panics if thread == name] or [message for _, message in panics]
    lines = [line.strip() for line in own[0].splitlines()] if own else ["(no message)"]
    if lines[0].startswith("assertion `left"):
        # It says nothing without the values.
        return ", ".join(lines)
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def try_out(fault: Fault) -> None:
    """Put a fault in, see what its test says, take it out again."""
    if refused := apply(fault):
        fault.problems.append(f"the patch doesn't apply any more: {refused}")
        return
    try:
        if refused := build(fault.test):
            fault.problems.append(f"it doesn't build: {refused}")
            return
        fault.outcome, fault.message = run(fault.test)
    finally:
        apply(fault, "--reverse")
    if fault.outcome != "failed":
        fault.problems.append(f"the test didn't fail: {fault.outcome}")


def main(names: list[str]) -> int:
    """Try the faults that are named, or all; 1 if one wasn't caught."""
    # So that what runs is ended, however this is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    known = sorted(path.stem for path in FAULTS.glob("*.patch"))
    if unknown := sorted(set(names) - set(known)):
        print(f"no such fault: {', '.join(unknown)}. There are {', '.join(known)}", file=sys.stderr)
        return 2
    began = time.monotonic()
    faults = [read(name) for name in names or known]
    copy_tree()

    # A test that fails anyhow would catch everything.
    for test in sorted({tuple(fault.test) for fault in faults}):
        print(f"unharmed: {test[-1]}", flush=True)
        problem = build(list(test)) or run(list(test))[0]
        if problem != "passed":
            print(f"without any fault: {problem}: {shlex.join(test)}", file=sys.stderr)
            return 1

    for fault in faults:
        print(f"harmed: {fault.name}", flush=True)
        try_out(fault)

    wide = max(len(fault.name) for fault in faults)
    print(f"\n{'fault':{wide}}  {'':10}  test, and what it said")
    for fault in faults:
        verdict = "NOT caught" if fault.problems else "caught"
        print(f"{fault.name:{wide}}  {verdict:10}  {fault.test_name}")
        for line in fault.problems or [fault.message]:
            print(f"{'':{wide}}  {'':10}    {line[:200]}")
    lost = sum(1 for fault in faults if fault.problems)
    print(f"\n{len(faults) - lost} of {len(faults)} faults caught, in {time.monotonic() - began:.0f} s")
    if lost:
        print(REFRESH)
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
