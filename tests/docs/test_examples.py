"""Every example in README and docs runs, in order, in a demo project of its own page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")])
BLOCK = re.compile(
    r"^```(?P<language>python|bash|yaml|json|csv|text)(?P<options>[^\n]*)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL
)


def examples(page: Path) -> list[tuple[str, str, str]]:
    """(language, options, code) of the runnable blocks of a page; `no-run` in the options leaves one out."""
    found = [(m["language"], m["options"].strip(), m["code"]) for m in BLOCK.finditer(page.read_text(encoding="utf-8"))]
    return [block for block in found if "no-run" not in block[1]]


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)], ids=lambda page: page.stem)
def test_every_example_of_the_page_runs(page: Path, demo_project: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1"}
    script: list[str] = []
    blocks = examples(page)
    for number, (language, options, code) in enumerate(blocks):
        if language in {"yaml", "json", "csv", "text"}:
            if language != "yaml" and "file=" not in options:
                continue
            name = options.removeprefix("file=") or "nevermore.yaml"
            (demo_project / name).parent.mkdir(parents=True, exist_ok=True)
            (demo_project / name).write_text(code, encoding="utf-8")
        elif language == "bash":
            _run(["bash", "-euo", "pipefail", "-c", code], demo_project, environment, f"{page.name}: {code}")
        else:
            script.append(code)
            if number + 1 < len(blocks) and blocks[number + 1][0] == "python":
                continue  # a block runs after those above it, so that neighbours need one process
            _run(
                [sys.executable, "-W", "ignore", "-c", "\n".join(script)],
                demo_project,
                environment,
                f"{page.name}: {code}",
            )


def _run(command: list[str], folder: Path, environment: dict[str, str], what: str) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{what}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
