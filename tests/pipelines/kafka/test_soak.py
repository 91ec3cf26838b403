"""Half a minute of the soak: see `soak.py`. `make soak MINUTES=10` runs it for longer."""

import pytest

from tests.support.kafka_broker import jars
from tests.support.soaking import assert_passes


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
def test_mirrors_show_only_what_was_committed_while_everything_is_killed(seed: int) -> None:
    jars()
    assert_passes("tests.pipelines.kafka.soak", seed)
