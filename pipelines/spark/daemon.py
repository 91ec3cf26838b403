"""The process from which Spark forks Python workers on this machine: it has imported what tasks of an ingest need.

Otherwise each worker imports that for itself, which takes more than a second of CPU. Runs as `spark.python.daemon.module`.
"""

import gc
import sys
from importlib import import_module

from pyspark.daemon import manager

if __name__ == "__main__":
    if sys.argv[1:] == ["pyspark.worker"]:  # others plan a read, and are few
        import_module("nevermore.pipelines.spark.ingest")
        gc.freeze()
    manager()
