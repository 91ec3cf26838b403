"""Waits for processes and servers that tests start."""

import socket
import time
from typing import Any


def wait_for(what: str, seconds: float, is_there: Any) -> Any:
    """The first answer of `is_there` that is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := is_there():
            return found
        time.sleep(0.1)
    raise AssertionError(f"no {what} within {seconds} s")


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
