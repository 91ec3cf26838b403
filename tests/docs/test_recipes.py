"""What a stranger installs by the documentation has what the commands next to it need."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted({*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs/ci").glob("*.yml"), ROOT / "README.md"})
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
INSTALL = re.compile(r"pip install '?nevermore-iceberg(?:\[([\w,-]+)\])?")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_extra_that_is_named_exists(page: Path) -> None:
    for named in INSTALL.findall(page.read_text()):
        assert {*named.split(",")} - {""} <= {*EXTRAS}


def test_the_workflow_installs_what_its_commands_need() -> None:
    workflow = (ROOT / "docs/ci/check-tables.yml").read_text()
    assert INSTALL.findall(workflow) == ["all"]  # `ingest` needs [catalogs], the tests need [checks]


def test_the_tutorial_installs_from_a_clone() -> None:
    first = (ROOT / "docs/tutorial.md").read_text().partition("## 1.")[0]
    assert "make venv" in first
    assert "pip install" not in first
