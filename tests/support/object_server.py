"""A server that speaks S3 and Glue on a port of this machine, as moto runs it, and ways to it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow.fs as pafs
from moto.server import ThreadedMotoServer


@contextmanager
def serving() -> Iterator[str]:
    """The address of an empty server, stopped at the end."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def properties_of(endpoint: str) -> dict[str, str]:
    """FileIO properties, as a user writes them."""
    return {
        "s3.endpoint": endpoint,
        "s3.access-key-id": "testing",
        "s3.secret-access-key": "testing",
        "s3.region": "us-east-1",
    }


def store_of(properties: dict[str, str]) -> pafs.S3FileSystem:
    """The same store without any code of ours."""
    return pafs.S3FileSystem(
        endpoint_override=properties["s3.endpoint"],
        access_key=properties["s3.access-key-id"],
        secret_key=properties["s3.secret-access-key"],
        region=properties["s3.region"],
        allow_bucket_creation=True,
    )
