"""The command `nevermore` without its second of imports: forks of one process that has imported the project.

Each command is still a process of its own, with its own folder, environment, streams and exit code. That the installed
command starts by itself is shown by the tests that start it as users do.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import wait_for

ONLY_WHEN_USED = (
    "llvmlite.binding",
    "numba",
    "pyarrow.dataset",
    "pyiceberg.catalog.sql",
    "pyiceberg.table",
    "sqlglot.optimizer",
)
"""Modules that no module of the project imports at its top."""
CLIENT = """#!/bin/sh
'''exec' "{python}" -IS "$0" "$@"
' '''
import signal
signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # until there is a process to hand them to
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server, server.makefile() as answers:
    server.connect({address!r})
    socket.send_fds(server, [b"f"], [0, 1, 2])
    server.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode() + b"\\n")
    process = int(answers.readline())
    for number in signals:
        signal.signal(number, lambda number, _: os.kill(process, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    code = answers.readline()
os._exit(int(code or "1"))
"""
"""The script `nevermore`, in place of that of the environment: hands the command over and ends with its exit code.

A shell begins it, as the first line cannot name a Python whose path has a blank.
"""


@contextmanager
def forked_commands(folder: Path) -> Iterator[Path]:
    """A folder with `nevermore` for the front of PATH; commands that still run at the end are killed."""
    address, script = folder / "commands.sock", folder / "nevermore"
    script.write_text(CLIENT.format(python=sys.executable, address=str(address)), encoding="utf-8")
    script.chmod(0o755)
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.forked_commands", str(address)]
    log = folder / "server.txt"
    with (
        log.open("w") as output,
        subprocess.Popen(
            command, cwd=Path(__file__).parents[2], stdout=output, stderr=output, start_new_session=True
        ) as server,
    ):
        try:
            wait_for("server of commands", lambda: address.exists() or server.poll() is not None)
            assert address.exists(), log.read_text()
            yield folder
        finally:
            os.killpg(server.pid, signal.SIGKILL)


def _next_command(listening: socket.socket) -> list[str]:
    """Serve; returns in each fork that is to run a command, with its words."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that wait for a command leave no zombies
    while True:
        client, _ = listening.accept()
        if os.fork():
            client.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _, streams, _, _ = socket.recv_fds(client, 1, 3)
        with client.makefile("rb") as request:
            words, folder, environment = json.loads(request.readline())
        if process := os.fork():
            client.sendall(f"{process}\n".encode())
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            client.sendall(f"{code if code >= 0 else 128 - code}\n".encode())
            os._exit(0)
        client.close()
        listening.close()
        for stream, number in zip(streams, (0, 1, 2), strict=True):
            os.dup2(stream, number)
            os.close(stream)
        # the server's own streams were other kinds of files
        sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = (
            os.fdopen(0, closefd=False),
            os.fdopen(1, "w", closefd=False),
            os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False),
        )
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        return list(words)


def _serve(address: str) -> None:
    for package in ("nevermore.scan_core", "nevermore.pipelines", "nevermore.checks"):
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    for name in ONLY_WHEN_USED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # collections in the forks would touch, and so copy, every page
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{address}.new")
        listening.listen()
        Path(f"{address}.new").rename(address)
        words = _next_command(listening)
    from nevermore.pipelines.cli.main import main

    sys.argv = ["nevermore", *words]
    try:
        main()
    except SystemExit as ended:
        # as any process ends, but for the memory, which would be copied to be given back
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(int(ended.code or 0))


if __name__ == "__main__":
    _serve(sys.argv[1])
