"""The folder that the tests of this package read."""

from pathlib import Path

import pytest

from tests.pipelines.sources.folder_reader import Reader


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)
