"""Runs the tests of this folder with both engines of an ingest: what they expect must hold for each."""

import pytest


@pytest.fixture(autouse=True)
def _each_engine(engine: str) -> None:
    """With the engine that this parameter names."""
