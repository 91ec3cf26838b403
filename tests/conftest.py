"""Fixtures of the whole suite: where the shared tables lie, and seeds that make random tests repeatable."""

import os
import random
from pathlib import Path

import numpy as np
import pytest

pytest_plugins = ("tests.spark_session",)

REPOSITORY = Path(__file__).resolve().parent.parent
SEED = 20_260_101


def find_shared() -> Path | None:
    """The folder of shared fixtures beside the repository, if it is there."""
    folder = REPOSITORY.parent / "shared"
    return folder if (folder / "fixtures").is_dir() else None


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Tables and event captures that lie beside the repository; without them CI fails and others skip."""
    folder = find_shared()
    if folder is None:
        reason = f"{REPOSITORY.parent / 'shared'} with the shared fixtures is missing"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002 - for code under test that uses the global generator
