"""Assertions and pytest fixtures for tests of tables in CI: `pytest_plugins = ["nevermore.checks.testing"]` in a conftest.py.

The assertions need no pytest. A failure lists keys, snapshot, files, and the command that shows what became of a key.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from nevermore.checks.mirror_checks import MIRROR_CHECKS, all_checks_of, run_checks, with_evidence
from nevermore.checks.published_equality import check_published
from nevermore.checks.subject import Subject
from nevermore.pipelines.config.project import Config, load
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import expanded
from nevermore.pipelines.publish.audit import CheckResult

CONFIG_VARIABLE = "NEVERMORE_CONFIG"
Project = Config | str | os.PathLike[str]
"""A project: its config, or the path of its nevermore.yaml."""


def assert_no_deleted_row_reappears(table: str | Subject, config: Project | None = None) -> None:
    """Assert that no key which the change log deleted is alive in a mirror.

    Args:
        table: a mirror of the project; or a `Subject`, which names a table and its change log by their metadata files.
        config: the project; by default the file that NEVERMORE_CONFIG names, or nevermore.yaml in the current folder.

    Raises:
        AssertionError: a deleted row is back, or there was nothing to compare.
        ConfigError: the config is wrong, or has no such mirror.
    """
    _assert(table, config, "no_deleted_row_reappears")


def assert_mirror_equals_reference(table: str | Subject, config: Project | None = None) -> None:
    """Assert that the rows of a mirror are those of its files and of its change log, both computed by DuckDB.

    Arguments and errors are those of `assert_no_deleted_row_reappears`.
    """
    _assert(table, config, "mirror_equals_reference")


def assert_key_is_unique(table: str | Subject, config: Project | None = None) -> None:
    """Assert that no key of a mirror has two rows.

    Arguments and errors are those of `assert_no_deleted_row_reappears`.
    """
    _assert(table, config, "key_is_unique")


def assert_manifests_match_files(table: str | Subject, config: Project | None = None) -> None:
    """Assert that the files of a mirror are what its manifests say.

    Arguments and errors are those of `assert_no_deleted_row_reappears`.
    """
    _assert(table, config, "manifests_match_files")


def assert_checks_pass(table: str, config: Project | None = None) -> None:
    """Assert that every blocking check of a mirror or a published table passes, with those that the config adds.

    Raises:
        AssertionError: a check failed, or there was nothing to compare.
        ConfigError: the config is wrong, or has no such table.
    """
    project = _project(config)
    if table in project.published:
        _judge(table, check_published(project, table, full=True))
    else:
        project.table(table)
        _judge(table, run_checks(project, table, all_checks_of(project, table), full=True))


def _assert(table: str | Subject, config: Project | None, name: str) -> None:
    if isinstance(table, Subject):
        _judge(table.table, [with_evidence(MIRROR_CHECKS[name](table), table, [table.table])])
        return
    project = _project(config)
    project.table(table)
    if name not in all_checks_of(project, table):
        raise ConfigError(f"{table} has no key, so {name} does not apply; use assert_mirror_equals_reference")
    _judge(table, run_checks(project, table, [name]))


def _judge(table: str, results: Iterable[CheckResult]) -> None:
    found = list(results)
    failed = [result for result in found if result.blocks]
    if failed:
        raise AssertionError("\n".join("\n  ".join([f"{table}: {one.name} failed", *one.lines()]) for one in failed))
    if not any(result.compared for result in found):  # a test that compares nothing must not be green
        reasons = "; ".join(detail for result in found for detail in result.details)
        raise AssertionError(f"{table}: nothing was compared: {reasons}")


def _project(config: Project | None) -> Config:
    if isinstance(config, Config):
        return config
    return expanded(load(Path(config or os.environ.get(CONFIG_VARIABLE) or "nevermore.yaml")))


# -- the pytest plugin -------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--nevermore-config PATH`."""
    parser.addoption(
        "--nevermore-config",
        metavar="PATH",
        help=f"The nevermore.yaml of the project under test; default: {CONFIG_VARIABLE}, or nevermore.yaml.",
    )


@pytest.fixture(scope="session")
def nevermore_config(request: pytest.FixtureRequest) -> Config:
    """The config of the project under test."""
    return _project(request.config.getoption("--nevermore-config"))


def pytest_generate_tests(metafunc: Any) -> None:
    """One test for each mirror (`nevermore_mirror`) or published table (`nevermore_published`) of the config."""
    wanted = {"nevermore_mirror", "nevermore_published"} & {*metafunc.fixturenames}
    if wanted:
        project = _project(metafunc.config.getoption("--nevermore-config"))
        names = {"nevermore_mirror": [*project.tables], "nevermore_published": [*project.published]}
        for fixture in sorted(wanted):
            metafunc.parametrize(fixture, names[fixture])
