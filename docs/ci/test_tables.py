"""Tests of every mirror of nevermore.yaml."""

from nevermore.checks.testing import assert_checks_pass, assert_no_deleted_row_reappears
from nevermore.pipelines.config.project import Config


def test_no_deleted_row_reappears(nevermore_mirror: str, nevermore_config: Config) -> None:
    assert_no_deleted_row_reappears(nevermore_mirror, nevermore_config)


def test_all_checks_pass(nevermore_mirror: str, nevermore_config: Config) -> None:
    assert_checks_pass(nevermore_mirror, nevermore_config)
