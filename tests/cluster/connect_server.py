"""A Spark Connect server on this machine, whose Python need not know our code."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster.processes import SPARK_HOME, ServerProcess, clean_environment, free_port, is_listening


class ConnectServer:
    """Use it as a context manager; leaving stops the server.

    Args:
        folder: for its log and its own files.
        path: folders in which it finds the `python3` of tasks.
    """

    def __init__(self, folder: Path, path: Sequence[Path | str] = ()) -> None:
        self._folder = folder
        self._environment = clean_environment(path) | {"SPARK_DAEMON_MEMORY": "1g"}  # what spark-submit gives a server
        self._port = free_port()
        self._process: ServerProcess | None = None
        self.url = f"sc://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
        }
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        self._process = ServerProcess("connect", [*command, "spark-internal"], self._folder, self._environment)
        try:
            self._process.wait_until(lambda: is_listening(self._port))
        except BaseException:
            self._process.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.stop()
