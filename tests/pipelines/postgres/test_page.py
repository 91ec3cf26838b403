"""The project of docs/postgresql.md, with a real server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.page_blocks import page_blocks
from tests.support.postgres_server import postgres, programs_or_skip

PAGE = Path(__file__).parents[3] / "docs" / "postgresql.md"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_the_project_of_the_page_follows_the_database(tmp_path: Path) -> None:
    with postgres(programs_or_skip()) as server:
        connection = server.connect("postgres")
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NO_COLOR": "1",
            "SHOP_DSN": server.dsn("postgres"),
        }
        for block in page_blocks(PAGE):
            if block.language == "sql" and block.title:
                with connection.cursor() as cursor:
                    cursor.execute(block.code)
            elif block.title:
                (tmp_path / block.title).write_text(block.code)
            elif "run-with-postgres" in block.marks:
                command = ["bash", "-euxo", "pipefail", "-c", block.code]
                done = subprocess.run(
                    command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
                )
                assert done.returncode == 0, done.stdout + done.stderr
        connection.close()
