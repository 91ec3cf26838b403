"""Every feed of the pages about files reaches the rows that its section says, in an empty folder."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.page_blocks import page_blocks

DOCS = Path(__file__).parents[2] / "docs"
FEEDS = ("sources", "debezium", "registry", "feeds")
"""Pages of projects that begin in an empty folder."""
SECTIONS = [
    part
    for page in FEEDS
    for part in re.split(r"^##? ", (DOCS / f"{page}.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    if "```" in part
]


@pytest.mark.each(3)
@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.partition("\n")[0])
def test_feed_of_the_page_reaches_its_rows(section: str, tmp_path: Path, environment: dict[str, str]) -> None:
    for block in page_blocks(section):
        if "no-run" in block.marks:
            continue
        if block.title:
            (tmp_path / block.title).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / block.title).write_text(block.code, encoding="utf-8")
            continue
        assert block.language == "bash"
        command = ["bash", "-euxo", "pipefail", "-c", block.code]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
