"""A read of the mirror, and what the driver learns of what its tasks did: python -m tests.cluster.report_job CONFIG."""

import json
import sys
from pathlib import Path

from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.spark.session import project_session
from nevermore.scan_core import open_table
from nevermore.scan_core.spark.frames import dataframe, reports_of
from nevermore.scan_core.spark.reports import REPORT_PATTERN


def main() -> None:
    config = load(Path(sys.argv[1]))
    session = project_session(config.spark)
    scan = open_table(find_table(open_catalog(config), "shop.sales")).scan().select("id", "amount")
    frame = dataframe(session, scan, reader="python")
    rows = frame.count()
    reports = reports_of(frame)
    here = len(list(reports.directory.glob(REPORT_PATTERN)))
    total = reports.total()
    seen = {
        "rows": rows,
        "reports_here_before": here,
        "splits": reports.num_splits,
        "missing": reports.num_missing,
        "rows_out": total.rows_out,
        "rows_removed": total.rows_removed_by_equality_deletes,
        "folder": str(reports.directory),
    }
    print(json.dumps(seen))  # noqa: T201 - what the test reads
    session.stop()


if __name__ == "__main__":
    main()
