"""What tests of manifests share."""

import pytest

from nevermore.scan_core.io import cache
from nevermore.scan_core.native import compiled


@pytest.fixture(params=["machine code", "run by Python"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether kernels are compiled makes no difference to what they read."""
    compiled.load()
    monkeypatch.setenv(compiled.SWITCH, "off" if request.param == "run by Python" else "on")
    cache.clear()
