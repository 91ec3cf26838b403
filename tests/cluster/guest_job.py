"""What a user does in a session of their own, which knows nothing of us: prints the number of rows by each way of reading, or the error.

python -m tests.cluster.guest_job TABLE (master|remote) URL [PY_FILES]
"""

import json
import sys
from collections.abc import Callable

from pyspark.sql import SparkSession

from nevermore import scan_core
from nevermore.scan_core.spark import dataframe, register, sql


def main() -> None:
    table, kind, url = sys.argv[1:4]
    builder = SparkSession.builder.config("spark.driver.memory", "1g").config("spark.executor.memory", "768m")
    session = (builder.remote(url) if kind == "remote" else builder.master(url)).getOrCreate()
    if len(sys.argv) > 4:
        session.sparkContext.addPyFile(sys.argv[4])
    scan = scan_core.open_table(table).scan()

    def by_format() -> int:
        register(session)
        return session.read.format("nevermore").load(table).filter("id >= 0").count()

    ways: dict[str, Callable[[], int]] = {
        "python": lambda: dataframe(session, scan, reader="python").count(),
        "auto": lambda: dataframe(session, scan).count(),
        "sql": lambda: sql(session, "select id from t where id >= 0", {"t": table}, reader="python").count(),
        "format": by_format,
    }
    seen = {}
    for name, count in ways.items():
        try:
            seen[name] = str(count())
        except scan_core.ScanError as error:
            seen[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(seen))  # noqa: T201 - what the test reads
    session.stop()


if __name__ == "__main__":
    main()
