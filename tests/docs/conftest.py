import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forked_commands import forked_commands


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """That of the commands of a page: `nevermore`, without the time of its imports, and the `python` of the tests."""
    with forked_commands(tmp_path_factory.mktemp("commands")) as folder:
        path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        yield {**os.environ, "PATH": path, "NO_COLOR": "1"}
