#!/usr/bin/env python3
"""Check that everything which carries a version carries the workspace's, and that the licence's copies are equal."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Print every mismatch; 1 if there is any."""
    command = ["cargo", "metadata", "--no-deps", "--locked", "--format-version=1"]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    versions = {package["name"]: package["version"] for package in metadata["packages"]}
    versions["the installed Python package"] = version("cursus-consumer")
    wanted = versions["cursus-wire"]

    problems = [f"{name} is at {found}, not {wanted}" for name, found in versions.items() if found != wanted]
    problems += [
        f"{manifest.relative_to(ROOT)} doesn't take the workspace's version"
        for manifest in (Path(package["manifest_path"]) for package in metadata["packages"])
        if "version.workspace = true" not in manifest.read_text()
    ]
    if (ROOT / "LICENSE").read_bytes() != (ROOT / "python/LICENSE").read_bytes():
        problems.append("python/LICENSE differs from LICENSE")
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
