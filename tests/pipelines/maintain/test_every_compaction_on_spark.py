"""What `test_compact.py` proves of a compaction by one process holds for one by tasks of Spark."""

import pytest

from tests.pipelines.maintain.test_compact import (
    catalog,
    test_a_dry_run_reports_what_the_run_then_does,
    test_a_position_delete_file_stays_while_one_of_its_data_files_does,
    test_a_table_with_uuids_is_compacted,
    test_an_empty_table_and_one_of_dead_rows_only,
    test_an_interrupted_compaction_removes_no_file_of_the_table,
    test_evolved_columns_are_rewritten_under_their_ids,
    test_files_of_an_older_spec_move_to_the_current_one_and_partial_deletes_meanwhile_make_it_plan_again,
    test_files_that_another_writer_keeps_changing_are_given_up,
    test_global_deletes_of_a_partitioned_table_stay_while_an_older_file_of_any_partition_does,
    test_position_deletes_that_arrive_meanwhile_make_it_plan_again,
    test_rows_of_version_3_keep_their_ids,
    test_rows_that_left_meanwhile_do_not_return,
    test_rule_30_a_delete_stays_though_all_files_of_the_time_before_it_were_replaced,
    test_rule_30_deletes_that_arrive_meanwhile_still_apply_and_reinserted_rows_stay,
    test_small_files_become_one_and_needless_deletes_leave_in_the_same_commit,
    test_tables_of_other_writers_have_the_same_rows_afterwards,
)
from tests.pipelines.maintain.test_compact_on_spark import by_tasks
from tests.support.spark_session import SPARK_TEST

__all__ = [
    "by_tasks",
    "catalog",
    "test_a_dry_run_reports_what_the_run_then_does",
    "test_a_position_delete_file_stays_while_one_of_its_data_files_does",
    "test_a_table_with_uuids_is_compacted",
    "test_an_empty_table_and_one_of_dead_rows_only",
    "test_an_interrupted_compaction_removes_no_file_of_the_table",
    "test_evolved_columns_are_rewritten_under_their_ids",
    "test_files_of_an_older_spec_move_to_the_current_one_and_partial_deletes_meanwhile_make_it_plan_again",
    "test_files_that_another_writer_keeps_changing_are_given_up",
    "test_global_deletes_of_a_partitioned_table_stay_while_an_older_file_of_any_partition_does",
    "test_position_deletes_that_arrive_meanwhile_make_it_plan_again",
    "test_rows_of_version_3_keep_their_ids",
    "test_rows_that_left_meanwhile_do_not_return",
    "test_rule_30_a_delete_stays_though_all_files_of_the_time_before_it_were_replaced",
    "test_rule_30_deletes_that_arrive_meanwhile_still_apply_and_reinserted_rows_stay",
    "test_small_files_become_one_and_needless_deletes_leave_in_the_same_commit",
    "test_tables_of_other_writers_have_the_same_rows_afterwards",
]

pytestmark = [*SPARK_TEST, pytest.mark.slow, pytest.mark.usefixtures("spark")]
