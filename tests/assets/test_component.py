"""A project as a component of Dagster: scaffolded, configured by defs.yaml, with the same definitions as workspace.yaml."""

import json
from pathlib import Path

import pytest
import yaml
from dagster.components.testing.utils import create_defs_folder_sandbox

from nevermore.assets.component import NevermoreProject
from nevermore.pipelines.errors import ConfigError
from tests.support.shop_project import ShopProject

pytestmark = [  # of Dagster itself
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning"),
]


def test_a_component_has_the_definitions_of_the_project(tmp_path: Path) -> None:
    project = ShopProject(tmp_path)
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(NevermoreProject, scaffold_params={"config": "shop.yaml"})
        document = yaml.safe_load((folder / "defs.yaml").read_text())
        assert document == {
            "type": "nevermore.assets.component.NevermoreProject",
            "attributes": {"config": "shop.yaml"},
        }
        first, _, config = (folder / "shop.yaml").read_text().partition("\n")
        assert "tables:" in config  # the commented config, which `dg` must not overwrite
        assert first == "# yaml-language-server: $schema=nevermore.schema.json"  # editors find it next to the config
        assert "properties" in json.loads((folder / "nevermore.schema.json").read_text())
        (folder / "shop.yaml").write_text(project.path.read_text())
        with sandbox.load_component_and_build_defs(folder) as (component, defs):
            assert isinstance(component, NevermoreProject)
            plain = project.definitions
            assert set(defs.resolve_all_asset_keys()) == set(plain.resolve_all_asset_keys())
            assert {job.name for job in defs.jobs or []} == {job.name for job in plain.jobs or []}
            assert {s.name for s in defs.schedules or []} == {s.name for s in plain.schedules or []}
            assert {s.name for s in defs.sensors or []} == {s.name for s in plain.sensors or []}


def test_an_error_in_the_config_of_a_component_has_its_line(tmp_path: Path) -> None:
    text = ShopProject(tmp_path).path.read_text().replace("partition:", "partiton:")
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(NevermoreProject)
        (folder / "nevermore.yaml").write_text(text)
        with pytest.raises(Exception, match=r"defs\.yaml") as error, sandbox.load_component_and_build_defs(folder):
            pass
    cause: BaseException | None = error.value
    while cause is not None and not isinstance(cause, ConfigError):
        cause = cause.__cause__
    assert "nevermore.yaml:18: unknown key 'partiton'; did you mean 'partition'?" in str(cause)


def test_the_schema_of_defs_yaml_names_both_options() -> None:
    schema = NevermoreProject.get_model_cls().model_json_schema()  # type: ignore[union-attr]
    assert set(schema["properties"]) == {"config", "spark_master"}
