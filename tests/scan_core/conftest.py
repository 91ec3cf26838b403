"""What tests of manifests share."""

import pytest

from nevermore.scan_core.io import cache
from nevermore.scan_core.metadata import manifests
from nevermore.scan_core.native import compiled


@pytest.fixture(params=["one by one", "many together"])
def entries_decoded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether compiled code finds the facts of entries makes no difference to what they say."""
    together = request.param == "many together"
    if together:
        compiled.load()
    monkeypatch.setattr(manifests, "MIN_RECORDS", 1 if together else 1 << 62)
    cache.clear()
