"""What tests of pipelines share: a catalog server that fails as it is told, and the engines of an ingest."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nevermore.pipelines.iceberg import commit
from nevermore.pipelines.ingest.feeds import Feed
from tests.support.only_spark import why_local
from tests.support.rest_catalog import FaultyCatalog, serving_catalog


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyCatalog]:
    """A catalog that fails as it is told, asked again without long pauses."""
    monkeypatch.setattr(commit, "PAUSE_SECONDS", 0.01)
    with serving_catalog(tmp_path) as found:
        yield found


@pytest.fixture(
    params=["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)])]
)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine that reads every feed of files and topics in this process, whatever configs say."""
    if request.param == "spark":
        request.getfixturevalue("spark")
        monkeypatch.setattr(Feed, "why_local", why_local)
    return str(request.param)


@pytest.fixture
def engine_program(engine: str) -> str:
    """What a program of a test begins with, so that it reads feeds with the same engine in a process of its own."""
    return "import tests.support.spark_ingest\n" if engine == "spark" else ""
