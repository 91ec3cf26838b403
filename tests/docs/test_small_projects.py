"""The projects in examples/ do what their READMEs say, each in a copy of its folder."""

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.page_blocks import page_blocks
from tests.support.postgres_server import postgres, programs_or_skip

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_readme(project: Path, environment: dict[str, str]) -> str:
    """Run the commands of a README, those marked as the first ones first; what they print."""
    blocks = [block for block in page_blocks(project / "README.md") if "no-run" not in block.marks]
    script = "\n".join(block.code for block in sorted(blocks, key=lambda block: "first" not in block.marks))
    command = ["bash", "-euxo", "pipefail", "-c", script]
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def own_environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "200"}


def test_every_project_is_listed() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    assert folders == {name for name in folders if f"]({name}/README.md)" in (EXAMPLES / "README.md").read_text()}


@pytest.mark.slow
def test_reading_only(tmp_path: Path) -> None:
    project = Path(shutil.copytree(EXAMPLES / "reading-only", tmp_path / "project"))
    printed = run_readme(project, own_environment())
    assert "1 rows; 1 removed by equality deletes" in printed
    assert "The Raven" in printed
    assert "Lenore" not in printed
    assert printed.endswith("[(1,)]\n")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "printed"), [("files-to-dagster", "poems"), ("postgresql-to-spark", "Grace")])
def test_the_project(name: str, printed: str, tmp_path: Path) -> None:
    project = Path(shutil.copytree(EXAMPLES / name, tmp_path / "project"))
    environment = own_environment()
    with ExitStack() as stack:
        if (tables := project / "shop.sql").exists():
            server = stack.enter_context(postgres(programs_or_skip()))
            connection = server.connect("postgres")
            with connection.cursor() as cursor:
                cursor.execute(tables.read_text())
            connection.close()
            environment["SHOP_DSN"] = server.dsn("postgres")
        assert printed in run_readme(project, environment)
