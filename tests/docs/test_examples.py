"""Every example in README and docs runs, in order, in a demo project of its own page.

The feeds run in `test_sources.py`, each in an empty folder.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.test_sources import FEEDS
from tests.support.page_blocks import Block, page_blocks

REPOSITORY = Path(__file__).parents[2]
PAGES = [
    page for page in sorted({REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")}) if page.stem not in FEEDS
]
NOTEBOOK = REPOSITORY / "docs" / "notebook.ipynb"
SLOW_PAGES = {
    *("dagster-team", "erase", "expectations", "expire", "incremental", "ingesting", "publishing", "runtime-filters"),
    *("spark", "spark-readers", "sql", "tutorial", "write"),
}
"""Pages that start Spark or Dagster again and again, or run very many commands."""

INTERPRETER = """
def serve():
    import json, os, sys, traceback
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    for line in sys.stdin:
        error = ""
        try:
            exec(compile(json.loads(line), "<example>", "exec"), globals())
        except BaseException:
            error = traceback.format_exc()
        print(json.dumps(error), file=answers)

serve()
"""
"""Runs blocks of code in one namespace, as a reader does who types them; answers each with its error."""


def examples(page: Path) -> list[Block]:
    """The runnable blocks of a page."""
    return [block for block in page_blocks(page) if "no-run" not in block.marks]


class Interpreter:
    """One Python process for all blocks of a page."""

    def __init__(self, folder: Path, environment: dict[str, str], log: Path) -> None:
        answers, self._answers_end = os.pipe()
        self._log = log
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", INTERPRETER, str(self._answers_end)],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                pass_fds=(self._answers_end,),
            )
        os.close(self._answers_end)
        self._answers = os.fdopen(answers)

    def run(self, code: str, what: str) -> None:
        """Run a block; `what` it is, for the message of a failure."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        answer = self._answers.readline()
        error = json.loads(answer) if answer else "the process ended"
        assert not error, f"{what}\n{self._log.read_text()[-3000:]}\n{error}"

    def end(self) -> None:
        """Let the process end as at the end of a script."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(timeout=300) == 0, self._log.read_text()[-3000:]

    def kill(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._answers.close()


@contextmanager
def interpreter(folder: Path, environment: dict[str, str], log: Path) -> Iterator[Interpreter]:
    process = Interpreter(folder, environment, log)
    try:
        yield process
        process.end()
    finally:
        process.kill()


@pytest.mark.spark
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=pytest.mark.slow if page.stem in SLOW_PAGES else ())
        for page in PAGES
        if examples(page)
    ],
)
def test_every_example_of_the_page_runs(
    page: Path, demo_project: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    with interpreter(demo_project, environment, tmp_path / "output.txt") as python:
        for block in examples(page):
            what = f"{page.name}: {block.code}"
            if block.language == "python":
                python.run(block.code, what)
            elif block.language == "bash":
                command = ["bash", "-euo", "pipefail", "-c", block.code]
                done = subprocess.run(
                    command, cwd=demo_project, env=environment, capture_output=True, text=True, timeout=300, check=False
                )
                assert done.returncode == 0, f"{what}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            elif block.language == "yaml" or block.title:
                path = demo_project / (block.title or "nevermore.yaml")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.code, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # Jupyter leaves a pipe to the kernel open
def test_the_notebook_runs_and_was_saved_as_it_ran(demo_project: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    saved = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in saved] == list(range(1, len(saved) + 1))
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(demo_project)}})
    for cell, before in zip(client.execute().cells, nbformat.read(NOTEBOOK, as_version=4).cells, strict=True):
        if cell.cell_type == "code":
            assert _kinds(cell.outputs) == _kinds(before.outputs)
            assert "error" not in {output.output_type for output in cell.outputs}


def _kinds(outputs: list[Any]) -> list[list[str]]:
    """What the outputs of a cell are; their values depend on the size of the demo."""
    return [sorted(output.get("data", {output.output_type: None})) for output in outputs]
