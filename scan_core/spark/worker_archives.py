"""Tasks of Python workers without their dearest step: reading the directories of Spark's own archives again.

Before each task a worker of Spark calls `importlib.invalidate_caches()`, for which Python up to 3.12 reads the directory of
every archive on the path at once. Those of PySpark and of Spark's jar hold thousands of names, a fifth of a second a
task, and never change while a worker lives.
"""

import sys
from fnmatch import fnmatch
from pathlib import PurePath
from zipimport import zipimporter

_OF_SPARK = ("pyspark.zip", "py4j-*.zip", "spark-core_*.jar")


def keep_archives_of_spark() -> None:
    """From its second task on, let this worker keep what it knows of these archives; others are read again."""
    for finder in sys.path_importer_cache.values():  # one for each package of an archive, all of which read the whole
        if isinstance(finder, zipimporter) and any(fnmatch(PurePath(finder.archive).name, x) for x in _OF_SPARK):
            setattr(finder, "invalidate_caches", _keep)  # noqa: B010 - mypy knows that it is a method


def _keep() -> None:
    """Nothing to read again."""
