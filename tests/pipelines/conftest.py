"""What tests of commits through a catalog server share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.iceberg import commit
from tests.support.rest_catalog import FaultyCatalog, serving_catalog


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyCatalog]:
    """A catalog that fails as it is told, asked again without long pauses."""
    monkeypatch.setattr(commit, "PAUSE_SECONDS", 0.01)
    with serving_catalog(tmp_path) as found:
        yield found
