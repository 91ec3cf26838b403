"""Half a minute of the soak: see `soak.py`. `make soak MINUTES=10` runs it for longer."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kafka_broker import jars


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
def test_mirrors_show_only_what_was_committed_while_everything_is_killed(seed: int) -> None:
    jars()
    command = [sys.executable, "-m", "tests.pipelines.kafka.soak", "--minutes", "0.5", "--seed", str(seed)]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert '"kills"' in done.stdout
