"""An ingest that commits nothing materializes nothing, so nothing downstream runs for it; what others committed is told once."""

import dagster as dg
import pytest

from nevermore.assets.jobs import INGEST_JOB
from nevermore.assets.project import change_log_key, mirror_key
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.maintain.compact import CompactSettings, compact
from nevermore.scan_core import open_table
from tests.support.shop_project import ShopProject, event, order

ORDERS = "shop.orders"
UPSTREAM = {"of_log": change_log_key(ORDERS), "of_mirror": mirror_key(ORDERS)}


class EagerProject:
    """The definitions of a project with eager assets of the user downstream, and ticks of the automation sensor."""

    def __init__(self, project: ShopProject, instance: dg.DagsterInstance) -> None:
        def eager(name: str, upstream: dg.AssetKey) -> dg.AssetsDefinition:
            @dg.asset(name=name, deps=[upstream], automation_condition=dg.AutomationCondition.eager())
            def downstream() -> None: ...

            return downstream

        self._made = [eager(name, key) for name, key in UPSTREAM.items()]
        self.definitions = dg.Definitions.merge(project.definitions, dg.Definitions(assets=self._made))
        self._instance, self._cursor = instance, None

    def ingest(self) -> list[dg.AssetKey]:
        """The assets that a run of the ingest job materialized; all its checks have run and passed."""
        result = self.definitions.resolve_job_def(INGEST_JOB).execute_in_process(instance=self._instance)
        assert len(result.get_asset_check_evaluations()) >= 3 * 8
        return [made.asset_key for made in result.get_asset_materialization_events()]

    def tick(self) -> int:
        """How many runs of assets downstream a tick asks for; they are run."""
        found = dg.evaluate_automation_conditions(
            self.definitions, self._instance, dg.AssetSelection.assets(*self._made), cursor=self._cursor
        )
        self._cursor = found.cursor
        if found.total_requested:
            dg.materialize([*self._made, *map(dg.AssetSpec, UPSTREAM.values())], instance=self._instance)  # type: ignore[list-item]
        return found.total_requested


@pytest.mark.slow
@pytest.mark.parametrize("by", ["dagster", "command"])
def test_what_follows_eagerly_follows_commits_and_not_idle_ingests(
    by: str, project: ShopProject, instance: dg.DagsterInstance
) -> None:
    eager = EagerProject(project, instance)
    eager.tick()
    for number in (3, 4):
        if by == "command":
            run_once(project.config)  # the ingest of Dagster finds nothing new, and tells what is there
        assert {*UPSTREAM.values()} <= {*eager.ingest()}
        assert eager.tick() == 2
        for _ in range(3):
            assert (eager.ingest(), eager.tick()) == ([], 0)
        project.land("orders", f"{number}.jsonl", [event("c", "orders", after=order(number + 5, 80.0, 2))])


@pytest.mark.slow
def test_the_data_version_is_the_snapshot_and_the_code_version_that_of_the_config(
    project: ShopProject, instance: dg.DagsterInstance
) -> None:
    def code_versions() -> dict[dg.AssetKey, str | None]:
        graph = project.definitions.resolve_asset_graph()
        return {key: graph.get(key).code_version for key in graph.get_all_asset_keys()}

    EagerProject(project, instance).ingest()
    for key in UPSTREAM.values():
        found = instance.get_latest_materialization_event(key)
        assert found is not None
        assert found.asset_materialization is not None
        tags = found.asset_materialization.tags or {}
        name = ORDERS if key == mirror_key(ORDERS) else "change_log.shop_orders"
        current = open_table(find_table(open_catalog(project.config), name)).metadata.current_snapshot_id
        assert tags["dagster/data_version"] == str(current)
        assert tags["dagster/code_version"] == code_versions()[key]
    before = code_versions()
    assert None not in before.values()
    text = project.path.read_text()
    project.path.write_text(text.replace("amount: double", "amount: float").replace("sum(amount)", "min(amount)"))
    changed = {key for key, version in code_versions().items() if version != before[key]}
    assert changed == {*UPSTREAM.values(), dg.AssetKey(["published", "shop", "daily"])}
    project.path.write_text(text.replace("key: [id]", "key: [id]\n    description: Orders."))
    assert code_versions() == before


@pytest.mark.slow
def test_a_compaction_is_no_news(project: ShopProject, instance: dg.DagsterInstance) -> None:
    eager = EagerProject(project, instance)
    second = project.folder / "landing" / "orders" / "2.jsonl"
    held_back = second.read_text()
    second.unlink()
    eager.tick()
    eager.ingest()
    second.write_text(held_back)
    eager.ingest()
    assert eager.tick() == 2
    table = find_table(open_catalog(project.config), ORDERS)
    assert table is not None
    before = table.metadata.current_snapshot_id
    compact(table, CompactSettings.of(table, project.config))
    assert table.metadata.current_snapshot_id != before
    assert (eager.ingest(), eager.tick()) == ([], 0)
