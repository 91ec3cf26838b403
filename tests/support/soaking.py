"""Soaks as commands, which `make soak` runs for long and tests for half a minute."""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run_as_command(soak: Callable[[float, int], dict[str, Any]], description: str | None) -> None:
    """Run a soak, which takes its seconds and seed, as the arguments of this process say, and print what it did."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)  # noqa: T201
    print(json.dumps(soak(arguments.minutes * 60, arguments.seed)))  # noqa: T201


def assert_passes(module: str, seed: int) -> None:
    """Run half a minute of a soak in a process of its own."""
    command = [sys.executable, "-m", module, "--minutes", "0.5", "--seed", str(seed)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert '"kills"' in done.stdout
