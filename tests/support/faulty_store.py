"""An object store on this machine whose answers fail as a test asks for: late, with an error, or cut short."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.late_store import FolderHandler, FolderServer


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: the name of the object, the bytes as its header states them, and how often that was asked for before."""

    name: str
    bytes: str
    before: int


@dataclass(frozen=True, slots=True)
class Fault:
    """What to do instead of answering: a status, or after `seconds` the answer, cut in the middle if `is_cut`, or with a damaged byte
    at a place of the object, counted from the end if it is negative."""

    status: int = 0
    seconds: float = 0.0
    is_cut: bool = False
    damaged: int | None = None


@dataclass(slots=True)
class Store:
    """A running store: its FileIO properties, what was asked of it, and what fails."""

    properties: dict[str, str]
    fault: Callable[[Asked], Fault | None] = lambda _: None
    asked: list[Asked] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def clear(self) -> None:
        """Forget what was asked."""
        self.asked.clear()


@contextmanager
def faulty_store(root: Path) -> Iterator[Store]:
    """The folder as `s3://bench` for as long as it lasts."""
    store = Store({})

    class Handler(FolderHandler):
        is_cut = False
        damaged: int | None = None

        def _answer(self, *, body: bool) -> None:
            name, given = self.path.rpartition("/")[2], self.headers.get("Range", "") if body else "HEAD"
            with store.lock:
                before = sum(a.name == name and a.bytes == given for a in store.asked)
                store.asked.append(asked := Asked(name, given, before))
            fault = store.fault(asked) or Fault()
            time.sleep(fault.seconds)
            if fault.status:
                self.send_response(fault.status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.is_cut, self.damaged = fault.is_cut, fault.damaged
            super()._answer(body=body)

        def _send(self, path: Path, begin: int, end: int) -> None:
            if self.damaged is not None:
                data = bytearray(path.read_bytes())
                data[self.damaged] ^= 4
                self.wfile.write(data[begin:end])
            elif not self.is_cut:
                super()._send(path, begin, end)
            else:
                super()._send(path, begin, (begin + end) // 2)
                self.close_connection = True

    handler = type("FaultyHandler", (Handler,), {"root": root, "request_seconds": 0.0})
    with FolderServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        store.properties.update({
            "s3.endpoint": f"http://127.0.0.1:{server.server_address[1]}",
            "s3.access-key-id": "reader",
            "s3.secret-access-key": "no-secret",
            "s3.region": "us-east-1",
        })  # fmt: skip
        try:
            yield store
        finally:
            server.shutdown()
            thread.join()
