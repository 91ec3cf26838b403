"""Makes `spark.read.format("nevermore")` known to Spark, which imports every module whose name begins with `pyspark_`.

Spark imports it in each session that uses any Python data source, so nothing heavy is imported before a table is read.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):  # type: ignore[misc] # pyspark is not typed for mypy here
    """The data source of `nevermore.scan_core.spark`, imported when it is used."""

    @classmethod
    def name(cls) -> str:
        """What SQL and `format()` call it."""
        return "nevermore"

    def schema(self) -> "StructType":
        """All columns of the table, or those of the option `columns`."""
        return self._source().schema()

    def reader(self, schema: "StructType") -> "DataSourceReader":
        """A reader of the columns of `schema`."""
        return self._source().reader(schema)

    def _source(self) -> DataSource:
        from nevermore.scan_core.spark.source import NevermoreDataSource

        return NevermoreDataSource(self.options)
