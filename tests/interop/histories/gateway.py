"""A JVM with the Iceberg runtime, and the few calls for which py4j needs help."""

import os
import sys
from collections.abc import Iterable
from typing import Any

from py4j.java_gateway import JavaGateway
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


class Java:
    """Iceberg Java in a process of its own. `iceberg` is its package `org.apache.iceberg`."""

    def __init__(self) -> None:
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        # quick start matters more than peak speed; Spark resolves the runtime and keeps it in its cache
        conf = (
            SparkConf(loadDefaults=False)
            .set("spark.jars.packages", RUNTIME)
            .set("spark.driver.memory", "1g")
            .set("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        )
        self.gateway: JavaGateway = launch_gateway(conf)
        self.jvm: Any = self.gateway.jvm
        self.iceberg: Any = self.jvm.org.apache.iceberg
        self.guava: Any = self.iceberg.relocated.com.google.common
        configuration = self.jvm.org.apache.hadoop.conf.Configuration()
        configuration.set("fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
        self.tables = self.iceberg.hadoop.HadoopTables(configuration)
        self.record: Any = self.iceberg.data.Record._java_lang_class
        iterable = self._array(self.jvm.java.lang.Class, [self.jvm.java.lang.Iterable._java_lang_class])
        self._write = self.iceberg.io.FileWriter._java_lang_class.getMethod("write", iterable)

    def write_all(self, writer: Any, records: Any) -> None:
        """`writer.write(Iterable)`: by name py4j would choose the overload for one row."""
        self._write.invoke(writer, self._array(self.jvm.java.lang.Object, [records]))

    def ints(self, values: Iterable[int]) -> Any:
        """An int[]."""
        return self._array(self.jvm.int, list(values))

    def rows(self, iterable: Any) -> Any:
        """All of a CloseableIterable as a list."""
        try:
            return self.guava.collect.Lists.newArrayList(iterable)
        finally:
            iterable.close()

    def close(self) -> None:
        self.gateway.shutdown()

    def _array(self, kind: Any, values: list[Any]) -> Any:
        array = self.gateway.new_array(kind, len(values))
        for at, value in enumerate(values):
            array[at] = value
        return array
