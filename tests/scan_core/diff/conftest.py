"""The table whose changes these tests read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scan_core.diff.table_changes import COLUMNS
from tests.support.table_builder import TableBuilder


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., TableBuilder]:
    return lambda **options: TableBuilder(tmp_path / "t", COLUMNS, **options)
