from pathlib import Path

from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.spark.reports import TaskReports
from tests.support.task_reports import of_last_stage


def test_without_plan_and_tasks_everything_is_zero(tmp_path: Path) -> None:
    reports = TaskReports(tmp_path / "nothing")
    assert (reports.num_splits, reports.stage_ids) == (0, ())
    assert reports.total() == of_last_stage(reports) == ScanMetrics()


def test_plan_and_splits_of_a_stage_add_up(tmp_path: Path) -> None:
    reports = TaskReports(tmp_path)
    reports.write_plan(ScanMetrics(manifests_read=3), num_splits=2)
    reports.write_task(7, 0, ScanMetrics(rows_out=10, bytes_read=100))
    reports.write_task(7, 1, ScanMetrics(rows_out=5))
    assert reports.num_splits == 2
    assert reports.total() == ScanMetrics(manifests_read=3, rows_out=15, bytes_read=100)


def test_a_second_attempt_replaces_the_report_of_the_first(tmp_path: Path) -> None:
    reports = TaskReports(tmp_path)
    reports.write_task(1, 0, ScanMetrics(rows_out=3))
    reports.write_task(1, 0, ScanMetrics(rows_out=10))
    assert reports.total().rows_out == 10
    assert not list(tmp_path.glob("*.tmp"))


def test_a_relation_read_twice_counts_both_reads_and_its_plan_once(tmp_path: Path) -> None:
    reports = TaskReports(tmp_path)
    reports.write_plan(ScanMetrics(data_files_planned=4), num_splits=1)
    reports.write_task(2, 0, ScanMetrics(rows_out=10))
    reports.write_task(11, 0, ScanMetrics(rows_out=6))
    assert reports.stage_ids == (2, 11)
    assert reports.total() == ScanMetrics(data_files_planned=4, rows_out=16)
    assert of_last_stage(reports) == ScanMetrics(data_files_planned=4, rows_out=6)


def test_without_a_folder_every_relation_has_its_own() -> None:
    first, second = TaskReports.in_folder(None), TaskReports.in_folder(None)
    assert first.directory != second.directory
    assert first.directory.is_dir()
