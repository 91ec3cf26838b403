"""Java processes of Spark that tests start and always stop: each in a session of its own, so that its children end too."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 120.0
_STOP_SECONDS = 20.0
_PAUSE_SECONDS = 0.2


class ServerProcess:
    """One server, whose output lies in a file."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=folder, env=dict(environment), stdout=output, stderr=output, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, is_up: Callable[[], bool]) -> None:
        """Return when it is up; fail if it ends, or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while not is_up():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start:\n{self.log.read_text(errors='replace')[-4000:]}")
            time.sleep(_PAUSE_SECONDS)

    def stop(self) -> None:
        """End it and all of its session."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            return


def clean_environment(path: Sequence[Path | str] = ()) -> dict[str, str]:
    """What a machine of a cluster has: a Java, Spark, a `python3` in the first folder of `path`, nothing of ours."""
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG", "HOME") if name in os.environ}
    folders = [*map(str, path), "/usr/local/bin", "/usr/bin", "/bin"]
    if "JAVA_HOME" in kept:
        folders.append(f"{kept['JAVA_HOME']}/bin")
    return {
        **kept,
        "PATH": os.pathsep.join(folders),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC",
    }


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
