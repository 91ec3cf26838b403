"""The project of docs/postgresql.md, and that of the README, with a real server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.page_blocks import page_blocks
from tests.support.postgres_server import postgres, programs_or_skip

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "postgresql.md"


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


@pytest.mark.timeout(600)
def test_the_readme_mirrors_a_database(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    (publication,) = re.findall(r"`(CREATE PUBLICATION [^`]+)`", readme)
    (block,) = (block for block in page_blocks(readme) if "run-with-postgres" in block.marks)
    with postgres(programs_or_skip()) as server:
        connection = server.connect("postgres")
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE products (id bigint PRIMARY KEY, name text)")
            cursor.execute("INSERT INTO products VALUES (1, 'scooter'), (2, 'hammer')")
            cursor.execute(publication)
        connection.close()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "NO_COLOR": "1", "SHOP_DSN": server.dsn("postgres")}
        command = ["bash", "-euxo", "pipefail", "-c", block.code + "nevermore scan postgres.products --count"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.endswith("\n2\n")
