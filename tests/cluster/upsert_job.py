"""What a user does in a session of their own, which knows nothing of us: upserts and deletes DataFrames; prints what became of the table.

python -m tests.cluster.upsert_job PROJECT URL
"""

import json
import sys

from pyspark.sql import SparkSession

from nevermore import open_project
from nevermore.pipelines.errors import PipelineError

NAME = "shop.orders"


def main() -> None:
    project = open_project(sys.argv[1])
    builder = SparkSession.builder.config("spark.driver.memory", "1g").config("spark.executor.memory", "768m")
    spark = builder.master(sys.argv[2]).getOrCreate()
    frame = spark.range(0, 30_000, numPartitions=6).selectExpr("id", "id * 2 as v")
    seen = {}
    try:
        seen["engine"] = project.upsert(NAME, frame, batch_id="1").engine
        seen["again"] = project.upsert(NAME, frame, batch_id="1").status
        project.upsert(NAME, frame.where("id % 3 = 0").selectExpr("id", "-1L as v"))
        project.delete(NAME, frame.where("id >= 20000"))
        rows = project.scan(NAME).to_table()
        seen |= {"rows": rows.num_rows, "sum": sum(rows.column("v").to_pylist())}
        project.upsert(NAME, frame.union(frame))
    except PipelineError as error:
        seen["error"] = str(error)
    print(json.dumps(seen))  # noqa: T201 - what the test reads
    spark.stop()


if __name__ == "__main__":
    main()
