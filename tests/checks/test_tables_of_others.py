"""Tables that are no mirrors yet are not compared, and are said to be what they are."""

from pathlib import Path

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from nevermore.checks.mirror_checks import run_checks
from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.maintain.adoption import adopt
from tests.pipelines.project import Project

NAME = "shop.products"


def test_a_table_of_others_is_said_to_be_no_mirror(tmp_path: Path) -> None:
    config = load(Project(tmp_path).folder / "nevermore.yaml")

    def told() -> list[tuple[bool, list[str]]]:
        return [(found.passed, list(found.details)) for found in run_checks(config, NAME, ["key_is_unique"])]

    assert told() == [(True, [f"{NAME} does not exist yet: nothing to compare"])]
    catalog = open_catalog(config)
    catalog.create_namespace("shop")
    table = catalog.create_table(NAME, Schema(NestedField(1, "id", LongType(), required=False)))
    table.append(pa.table({"id": [1]}))
    no_mirror = (
        f"{NAME} exists, but is not a mirror: another program created it, and no change log is applied to it, so there is "
        f"nothing to compare; nevermore adopt {NAME} turns it into a mirror, or says why it cannot"
    )
    assert told() == [(True, [no_mirror])]
    adopt(catalog, config, NAME)
    no_log = f"{NAME} has no change log, like an adopted table before its first change: nothing to compare it with"
    assert told() == [(True, [no_log])]
