"""A minute of the soak: see `soak.py`. `make soak MINUTES=10` runs it for longer."""

import pytest

from tests.support.postgres_server import programs_or_skip
from tests.support.soaking import assert_passes


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_mirrors_show_only_states_of_the_source_while_everything_is_killed(seed: int) -> None:
    programs_or_skip()
    assert_passes("tests.pipelines.postgres.soak", seed)
