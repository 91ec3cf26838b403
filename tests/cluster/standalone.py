"""A standalone cluster on this machine: one master, two workers, whose Python need not know our code.

python -m tests.cluster.standalone [FOLDER]    until it is interrupted
"""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster.processes import SPARK_HOME, ServerProcess, clean_environment, free_port, is_listening

WORKER_MEMORY = "1g"
_SPARK_CLASS = str(SPARK_HOME / "bin" / "spark-class")


class StandaloneCluster:
    """Use it as a context manager; leaving stops every process.

    Args:
        folder: for logs and the workers' own folders.
        path: folders in which workers find their `python3`.
        num_workers: each with one core.
        private: a folder in whose place each worker has one of its own, as on another machine; needs the right to mount.
    """

    def __init__(
        self, folder: Path, path: Sequence[Path | str] = (), num_workers: int = 2, private: Path | None = None
    ) -> None:
        self._folder = folder
        self._private = private
        self._environment = clean_environment(path)
        self._num_workers = num_workers
        self._processes: list[ServerProcess] = []
        self.url = f"spark://127.0.0.1:{free_port()}"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        port = int(self.url.rpartition(":")[2])
        master = self._run("master", "master.Master", "--port", str(port), "--webui-port", str(free_port()))
        master.wait_until(lambda: is_listening(port))
        for number in range(self._num_workers):
            self._run(
                f"worker-{number}",
                "worker.Worker",
                *("--webui-port", str(free_port()), "--cores", "1", "--memory", WORKER_MEMORY),
                *("--work-dir", str(self._folder / f"work-{number}"), self.url),
                host=f"127.0.0.{number + 2}",  # to Spark machines of their own: no task is overtaken on its own machine
            )
        for worker in self._processes[1:]:
            worker.wait_until(lambda worker=worker: "Successfully registered" in worker.log.read_text())  # type: ignore[misc]

    def _run(self, name: str, class_name: str, *arguments: str, host: str = "127.0.0.1") -> ServerProcess:
        command = [_SPARK_CLASS, f"org.apache.spark.deploy.{class_name}", "--host", host, *arguments]
        if self._private is not None and class_name == "worker.Worker":
            mount = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
            command = [
                "unshare",
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                mount,
                str(self._private),
                *command,
            ]
        self._processes.append(ServerProcess(name, command, self._folder, self._environment))
        return self._processes[-1]

    def executors(self) -> list[int]:
        """Process ids of the executors that run now: children of workers stay in their sessions."""
        sessions = {process.pid for process in self._processes}
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):  # it has ended
                    is_executor = b"CoarseGrainedExecutorBackend" in (folder / "cmdline").read_bytes()
                    if is_executor and os.getsid(int(folder.name)) in sessions:
                        found.append(int(folder.name))
        return found

    def stop(self) -> None:
        """End workers first, then the master."""
        while self._processes:
            self._processes.pop().stop()


def main() -> None:
    """Run a cluster until a signal comes."""
    with tempfile.TemporaryDirectory() as own:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(own)
        with StandaloneCluster(folder, [Path(sys.executable).parent]) as cluster:
            sys.stdout.write(f"{cluster.url}\n")
            sys.stdout.flush()
            signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    main()
