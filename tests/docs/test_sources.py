"""Every feed of docs/sources.md reaches the rows that its section says, in an empty folder."""

import re
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from tests.support.page_blocks import page_blocks

PAGE = Path(__file__).parents[2] / "docs" / "sources.md"
SECTIONS = [part for part in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE) if "```" in part]


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


def test_page_names_every_format_and_every_option() -> None:
    from nevermore.pipelines.formats.options import ALIASES
    from nevermore.pipelines.formats.registry import FORMATS
    from nevermore.pipelines.sources.file_options import FileOptions

    words = set(re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`\n]+)`", PAGE.read_text(encoding="utf-8")))))
    options = {f.name for kind in (FileOptions, *(known.options for known in FORMATS.values())) for f in fields(kind)}
    assert {*FORMATS, *ALIASES, *options} <= words
