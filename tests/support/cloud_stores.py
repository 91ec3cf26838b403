"""Emulators of S3, Google Cloud Storage and Azure's blobs, each on a free port of this machine.

That of Google comes from PyPI. Azurite is Microsoft's; npm fetches it once per user and version.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from tests.support.object_server import properties_of, serving, store_of
from tests.support.processes import free_port, wait_for

AZURITE = "3.37.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account of every Azurite, as its documentation has it: no secret."""

_GOOGLE = """
import sys
from http.server import ThreadingHTTPServer
from gcp_storage_emulator import server
server.server.HTTPServer = ThreadingHTTPServer  # clients keep their connections open
server.create_server("127.0.0.1", int(sys.argv[1]), in_memory=True).run()
"""


@dataclass(frozen=True)
class CloudStore:
    """A running store.

    Attributes:
        scheme: of its addresses.
        properties: of FileIO, as a user writes them.
        files: the same store without any code of ours.
        container: of the tables, with what follows it in an address.
    """

    scheme: str
    properties: dict[str, str]
    files: pafs.FileSystem
    container: str

    def address(self, path: str) -> str:
        return f"{self.scheme}://{self.container}/{path}"

    def write(self, path: str, data: bytes) -> None:
        with self.files.open_output_stream(f"{self.container.partition('@')[0]}/{path}") as file:
            file.write(data)


@contextmanager
def amazon_store() -> Iterator[CloudStore]:
    """S3 with an empty bucket."""
    with serving() as endpoint:
        properties = properties_of(endpoint)
        files = store_of(properties)
        files.create_dir("bucket")
        yield CloudStore("s3", properties, files, "bucket")


@contextmanager
def google_store() -> Iterator[CloudStore]:
    """Google Cloud Storage with an empty bucket."""
    pytest.importorskip("gcp_storage_emulator")
    with _running(lambda port: [sys.executable, "-c", _GOOGLE, str(port)]) as port:
        files = pafs.GcsFileSystem(
            anonymous=True,
            scheme="http",
            endpoint_override=f"127.0.0.1:{port}",
            default_bucket_location="US",
            project_id="tests",
            retry_time_limit=timedelta(seconds=20),
        )
        files.create_dir("bucket")
        # a token of its own keeps the client from asking Google for one
        properties = {
            "gcs.service.host": f"http://127.0.0.1:{port}",
            "gcs.oauth2.token": "anonymous",
            "gcs.oauth2.token-expires-at": str(2**42),
        }
        yield CloudStore("gs", properties, files, "bucket")


@contextmanager
def azure_store() -> Iterator[CloudStore]:
    """Azure's blob storage with an empty container."""
    program = _azurite()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--location", folder, "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        command = ["node", str(program), "--blobHost", "127.0.0.1", *options, "--blobPort"]
        with _running(lambda port: [*command, str(port)]) as port:
            place = f"127.0.0.1:{port}"
            files = pafs.AzureFileSystem(
                ACCOUNT,
                account_key=KEY,
                blob_storage_authority=place,
                blob_storage_scheme="http",
                dfs_storage_authority=place,
                dfs_storage_scheme="http",
            )
            files.create_dir("box")
            properties = {
                "adls.account-name": ACCOUNT,
                "adls.account-key": KEY,
                "adls.blob-storage-authority": place,
                "adls.blob-storage-scheme": "http",
                "adls.dfs-storage-authority": place,
                "adls.dfs-storage-scheme": "http",
            }
            yield CloudStore("abfs", properties, files, "box")


def _azurite() -> Path:
    """Azurite's script, fetched if it is not there; a test without npm is skipped."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nevermore-tests"
    folder = cache / f"azurite-{AZURITE}"
    script = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if script.is_file():
        return script
    if shutil.which("npm") is None:
        pytest.skip("npm is missing")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as made:
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", made, f"azurite@{AZURITE}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            pytest.skip(f"Azurite cannot be fetched: {done.stderr[-300:]}")
        shutil.rmtree(folder, ignore_errors=True)
        Path(made).rename(folder)
        Path(made).mkdir()  # which the context removes
    return script


@contextmanager
def _running(command: Callable[[int], Sequence[str]]) -> Iterator[int]:
    """The port of a server, which ends with the context."""
    port = free_port()
    process = subprocess.Popen(command(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def is_open() -> bool:
            assert process.poll() is None, f"{command(port)[:2]} did not start"
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_for("server", is_open)
        yield port
    finally:
        process.kill()
        process.wait()
