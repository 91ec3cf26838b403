"""The few names of `nevermore` itself: a project's tables by their names, without anything heavy until they are used."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest

import nevermore
from nevermore import PipelineError, ScanError, open_project, open_table
from nevermore.pipelines.config.project import load
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.scan_core import TableNotFoundError
from tests.support.shop_project import ShopProject


@pytest.fixture
def project(tmp_path: Path) -> ShopProject:
    made = ShopProject(tmp_path)
    made.land_orders()
    made.land_people()
    run_once(load(made.path))
    return made


def test_a_project_gives_its_tables_by_the_names_of_its_config(
    project: ShopProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.path.parent)
    rows = open_project().scan("shop.orders").count()
    assert rows
    for place in (project.path, str(project.path.parent)):
        opened = open_project(place)
        assert set(opened.tables) == set(load(project.path).tables)  # nothing is published yet
        assert opened.table("shop.orders").scan().count() == rows
        with pytest.raises(TableNotFoundError, match=r"did you mean shop\.orders"):
            opened.table("shop.order")
        assert opened.table("change_log.shop_orders").scan().count() >= rows
    assert open_table("shop.orders").scan().count() == rows
    assert open_table(open_table("shop.orders").location).scan().count() == rows


def test_what_is_no_project_is_an_error_of_the_face(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no config file"):
        open_project(tmp_path)
    with pytest.raises(ScanError):
        open_table("a.b.c")
    assert nevermore.__version__ == version("nevermore-iceberg")


def test_importing_it_imports_nothing_heavy() -> None:
    code = "import sys, nevermore; print(sorted({n.partition('.')[0] for n in sys.modules} - sys.stdlib_module_names))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {*eval(done.stdout)}  # noqa: S307 - a list that we printed
    assert not loaded & {
        "numpy",
        "pyarrow",
        "pydantic",
        "pyiceberg",
        "pandas",
        "typer",
        "dagster",
        "pyspark",
        "numba",
        "duckdb",
    }


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("pandas", "to_pandas()"),
        ("duckdb", "to_duckdb('v')"),
        ("polars", "to_polars()"),
    ],
)
def test_a_missing_package_is_an_error_of_the_engine(
    package: str, call: str, project: ShopProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = open_project(project.path).scan("shop.orders")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ScanError, match=f"requires {package}: pip install '"):
        eval(f"scan.{call}", {"scan": scan})  # noqa: S307 - the calls above


def test_a_table_of_a_catalog_without_pyiceberg_is_an_error_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(ScanError, match=r"'a\.b\.c'.*requires pyiceberg: pip install"):
        open_table("a.b.c")


def test_pandas_gets_its_options(project: ShopProject) -> None:
    pandas = pytest.importorskip("pandas")
    frame = open_project(project.path).scan("shop.orders").select("id").to_pandas(types_mapper=pandas.ArrowDtype)
    assert frame["id"].dtype == pandas.ArrowDtype(pa.int64())
