"""The dagster.yaml of the documentation, with a real PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import yaml

from nevermore.assets.jobs import INGEST_JOB
from nevermore.assets.project import change_log_key, mirror_key
from tests.conftest import REPOSITORY
from tests.support.page_blocks import page_blocks
from tests.support.postgres_server import postgres, programs_or_skip
from tests.support.shop_project import ShopProject

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A DAGSTER_HOME with the settings of the documentation."""
    pytest.importorskip("dagster_postgres", reason="pip install dagster-postgres")
    (settings,) = (block.code for block in page_blocks(REPOSITORY / "docs" / "dagster-team.md") if block.title)
    assert yaml.safe_load(settings)["concurrency"]["pools"] == {"default_limit": 1}
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "dagster.yaml").write_text(settings)
    with postgres(programs_or_skip()) as server:
        monkeypatch.setenv(
            "DAGSTER_POSTGRES_URL", server.dsn("postgres").replace("postgresql:", "postgresql+psycopg2:")
        )
        yield tmp_path / "home"


def test_runs_events_and_pools_of_a_team_are_in_postgresql(home: Path, tmp_path: Path) -> None:
    project = ShopProject(tmp_path)
    project.land_orders()
    keys = [change_log_key("shop.orders"), mirror_key("shop.orders")]
    with dg.DagsterInstance.from_config(str(home)) as instance:
        job = project.definitions.resolve_job_def(INGEST_JOB)
        result = job.execute_in_process(instance=instance, asset_selection=keys)
        assert result.success
    with dg.DagsterInstance.from_config(str(home)) as later:
        assert type(later.event_log_storage).__module__.startswith("dagster_postgres")
        assert later.get_run_by_id(result.run_id) is not None
        for key in keys:
            event = later.get_latest_materialization_event(key)
            assert event is not None
            assert event.run_id == result.run_id
