"""The projects of docs/object-stores.md, with servers that speak S3 and Glue, and PostgreSQL, on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.object_server import properties_of, serving, store_of
from tests.support.page_blocks import page_blocks
from tests.support.postgres_server import postgres, programs_or_skip

PAGE = Path(__file__).parents[2] / "docs" / "object-stores.md"
EVENTS = b"""\
{"op": "c", "before": null, "after": {"id": 1, "name": "scooter"}, "source": {"table": "products"}}
{"op": "c", "before": null, "after": {"id": 2, "name": "hammer"}, "source": {"table": "products"}}
{"op": "d", "before": {"id": 2, "name": "hammer"}, "after": null, "source": {"table": "products"}}
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_projects_of_the_page_reach_their_rows(tmp_path: Path) -> None:
    with serving() as address, postgres(programs_or_skip()) as database:
        store = store_of(properties_of(address))
        store.create_dir("bucket/landing")
        with store.open_output_stream("bucket/landing/1.jsonl") as file:
            file.write(EVENTS)
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NO_COLOR": "1",
            "S3_ENDPOINT": address,
            "S3_KEY": "testing",
            "S3_SECRET": "testing",
            "CATALOG_URI": database.dsn("postgres").replace("postgresql://", "postgresql+psycopg2://"),
        }
        for block in page_blocks(PAGE):
            if block.title:
                (tmp_path / block.title).write_text(block.code)
            elif "run-with-s3" in block.marks:
                command = ["bash", "-euxo", "pipefail", "-c", block.code]
                done = subprocess.run(
                    command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
                )
                assert done.returncode == 0, done.stdout + done.stderr
                assert "testing" not in done.stdout + done.stderr  # secrets come from the environment
