"""An object store on this machine that answers late: S3's HEAD and GET of a folder, in a process of its own.

Every request waits as one to a store in the same region does, and a connection hands out bytes at a fixed rate. Requests of
one client are answered side by side, as many as it sends.
"""

import re
import subprocess
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

BUCKET = "bench"
REQUEST_SECONDS = 0.030
BYTES_PER_SECOND = 80e6
_PIECE = 256 * 1024


@contextmanager
def late_store(root: Path, request_seconds: float = REQUEST_SECONDS) -> Iterator[dict[str, str]]:
    """The folder as `s3://bench` for as long as it lasts; yields the FileIO properties to read it."""
    command = [sys.executable, "-m", "benchmarks.late_store", str(root), str(request_seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            yield {
                "s3.endpoint": f"http://127.0.0.1:{port}",
                "s3.access-key-id": "reader",
                "s3.secret-access-key": "no-secret",
                "s3.region": "us-east-1",
            }
        finally:
            server.terminate()


class FolderHandler(BaseHTTPRequestHandler):
    """Answers HEAD and GET of the objects that lie in `root`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    root: Path
    request_seconds: float

    def do_HEAD(self) -> None:
        time.sleep(self.request_seconds)
        self._answer(body=False)

    def do_GET(self) -> None:
        time.sleep(self.request_seconds)
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.root / unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}/").lstrip("/")
        if not path.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        size = path.stat().st_size
        version = f'"{path.stat().st_mtime_ns}-{size}"'
        if self.headers.get("If-None-Match") == version:
            self.send_response(304)
            self.send_header("ETag", version)
            self.end_headers()
            return
        begin, end = 0, size
        if (asked := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))) is not None:
            if asked[1]:
                begin, end = int(asked[1]), min(int(asked[2]) + 1 if asked[2] else size, size)
            else:
                begin = max(size - int(asked[2]), 0)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.send_header("Content-Length", str(end - begin))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("ETag", version)
        self.end_headers()
        if body:
            self._send(path, begin, end)

    def _send(self, path: Path, begin: int, end: int) -> None:
        started = time.perf_counter()
        with path.open("rb") as file:
            file.seek(begin)
            for sent in range(0, end - begin, _PIECE):
                data = file.read(min(_PIECE, end - begin - sent))
                try:
                    self.wfile.write(data)
                except ConnectionError:  # the client has seen enough
                    self.close_connection = True
                    return
                late = (sent + len(data)) / BYTES_PER_SECOND - (time.perf_counter() - started)
                if late > 0:
                    time.sleep(late)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name that the base class gives it
        """Print nothing."""


class FolderServer(ThreadingHTTPServer):
    """Answers every request in a thread of its own."""

    daemon_threads = True
    request_queue_size = 128


def serve(root: Path, request_seconds: float) -> None:
    """Answer until the process is ended; prints the port first."""
    handler = type("Handler", (FolderHandler,), {"root": root, "request_seconds": request_seconds})
    with FolderServer(("127.0.0.1", 0), handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what the bucket holds")
    parser.add_argument("seconds", type=float, help="how long every request waits")
    arguments = parser.parse_args()
    serve(arguments.folder, arguments.seconds)
