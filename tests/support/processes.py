"""Waits for processes and servers that tests start."""

import random
import socket
import time
from typing import Any

PATIENCE_SECONDS = 300.0
"""How long something may take that is sure to come: far longer than on a machine that does twenty other things."""
_RANDOM = random.SystemRandom()


def wait_for(what: str, is_there: Any, *, seconds: float = PATIENCE_SECONDS) -> Any:
    """The first answer of `is_there` that is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := is_there():
            return found
        time.sleep(0.05)
    raise AssertionError(f"no {what} within {seconds} s")


def free_port() -> int:
    """A port of this machine that nobody listens on.

    It is none of those that the system gives to connections, which could take it before the server that it is meant for. All
    processes of a test run seed the common generator alike, and would try the same ports.
    """
    while True:
        port = _RANDOM.randrange(10_000, 32_000)
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
