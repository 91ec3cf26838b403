"""A project with landed orders and people, and a Dagster instance that forgets everything."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from tests.support.shop_project import ShopProject


@pytest.fixture
def project(tmp_path: Path) -> ShopProject:
    project = ShopProject(tmp_path)
    project.land_orders()
    project.land_people()
    return project


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance
