"""What Spark raises when a query or job fails, and the one line of it that a person needs. Imports pyspark."""

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

SPARK_FAILURES = (PySparkException, Py4JError)
"""PySpark gives only some of Java's exceptions a class of its own; an aborted job is not among them."""
_OF_JAVA = ("java.", "javax.", "org.apache.", "scala.")


def spark_message(error: Exception) -> str:
    """The part of Spark's message that a person needs: for a failed Python task, the error of the task itself."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, Py4JError):  # the first line only tells which method was called
        lines = [_without_class(line.removeprefix(": ")) for line in lines[1:]] or lines
    return next((line for line in reversed(lines) if _is_python_error(line)), lines[0] if lines else repr(error))


def _without_class(line: str) -> str:
    """`org.apache.spark.SparkException: [X] ...` without the class."""
    name, separator, rest = line.partition(": ")
    return rest if separator and name.startswith(_OF_JAVA) and " " not in name else line


def _is_python_error(line: str) -> bool:
    name, _, rest = line.partition(":")
    return bool(rest) and name.endswith("Error") and " " not in name and not name.startswith(_OF_JAVA)
