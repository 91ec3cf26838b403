"""The project of docs/postgresql.md, with a real server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.postgres_server import postgres, programs_or_skip

PAGE = Path(__file__).parents[3] / "docs" / "postgresql.md"
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


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
        for language, options, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
            named = re.search(r"file=(\S+)", options)
            if language == "sql" and named is not None:
                with connection.cursor() as cursor:
                    cursor.execute(text)
            elif named is not None:
                (tmp_path / named[1]).write_text(text)
            elif "run-with-postgres" in options:
                command = ["bash", "-euxo", "pipefail", "-c", text]
                done = subprocess.run(
                    command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
                )
                assert done.returncode == 0, done.stdout + done.stderr
        connection.close()
