"""The job that runs everywhere: reads mirrors as DataFrames, publishes days, and tells in JSON what it has seen.

python -m tests.cluster.job CONFIG [--master M | --remote R] [--days D,...] [--tables T,...]
"""

import argparse
import json
from pathlib import Path
from typing import Any

from pyspark.sql import functions as f

from nevermore.pipelines.config.project import Config, load
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.publish.refresh import publish
from nevermore.pipelines.spark.session import project_session
from nevermore.scan_core import open_table
from nevermore.scan_core.spark.frames import dataframe, reports_of


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--master")
    parser.add_argument("--remote")
    parser.add_argument("--days", default="")
    parser.add_argument("--tables", default="")
    arguments = parser.parse_args()
    config = load(arguments.config)
    session = project_session(config.spark.at(arguments.master, arguments.remote))
    fallbacks, by_python = read(session, config, "python")
    seen = {
        "read": {"python": by_python, "auto": read(session, config, "auto")[1]},
        "fallbacks": fallbacks,
        "reports": [
            publish(config, table, partitions=[day]).as_dict()
            for table in filter(None, arguments.tables.split(","))
            for day in filter(None, arguments.days.split(","))
        ],
    }
    print(json.dumps(seen))  # noqa: T201 - what the test reads
    session.stop()


def read(session: Any, config: Config, reader: str) -> tuple[int, list[list[Any]]]:
    """Fallbacks of the tasks, and counts and sums of the mirror by store, through one of the readers."""
    scan = open_table(find_table(open_catalog(config), "shop.sales")).scan().select("id", "store", "amount")
    reports = config.spark.reports and f"{config.spark.reports}/{reader}"
    frame = dataframe(session, scan, reader=reader, metrics_dir=reports)  # type: ignore[arg-type] # one of the two
    sums = frame.groupBy("store").agg(f.count("*").alias("n"), f.sum("amount").alias("amount"))
    rows = sorted([row["store"], row["n"], row["amount"]] for row in sums.collect())
    return reports_of(frame).total().fallbacks, rows


if __name__ == "__main__":
    main()
