"""With `--json`, an error of any command is one object on standard error, and nothing on standard output."""

import json
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from nevermore.pipelines.cli.main import COMMANDS

Run = Callable[..., tuple[int, str, str]]
ARGUMENTS = {
    "adopt": ["shop.none"],
    "changes": ["shop.none"],
    "compact": ["shop.none"],
    "convert": ["shop.none"],
    "describe": ["shop.none"],
    "erase": ["shop.none", "--where", "id = 1"],
    "explain": ["shop.none"],
    "files": ["shop.none"],
    "index": ["shop.none"],
    "quarantine": ["shop.none"],
    "replay": ["shop.none"],
    "resync": ["shop.none"],
    "rollback": ["shop.none", "--to", "1"],
    "scan": ["shop.none"],
    "snapshots": ["shop.none"],
    "sql": ["select * from shop.none"],
    "trim-log": ["shop.none"],
    "verify": ["shop.none"],
    "why": ["shop.none", "--key", "id=1"],
}
"""Arguments without which a command asks for them."""
WITHOUT_CONFIG = {"demo", "init", "simulate", "spark-package", "ui"}
NAMES = sorted(point.name for point in entry_points(group=COMMANDS))


def one_error(run: Run, *words: object) -> str:
    code, output, errors = run(*words, "--json")
    assert code in {1, 2}, (output, errors)
    assert output == ""
    (line,) = errors.splitlines()
    document = json.loads(line)
    assert set(document) == {"error"}
    assert document["error"]
    return str(document["error"])


@pytest.mark.parametrize("name", NAMES)
def test_unknown_options(run: Run, name: str) -> None:
    assert "--nothing" in one_error(run, name, *ARGUMENTS.get(name, []), "--nothing")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_CONFIG])
@pytest.mark.parametrize(
    "text",
    [
        None,
        pytest.param("", marks=pytest.mark.slow),
        pytest.param("tables: [", marks=pytest.mark.slow),
        pytest.param("tables: {shop.a: {source: {type: files}}}", marks=pytest.mark.slow),
        "nothing: 1",
    ],
)
def test_missing_and_broken_configs(run: Run, tmp_path: Path, name: str, text: str | None) -> None:
    config = tmp_path / "nevermore.yaml"
    if text is not None:
        config.write_text(text)
    one_error(run, name, *ARGUMENTS.get(name, []), "--config", config)


@pytest.mark.parametrize(
    "words",
    [
        ["demo", "--rows", "1"],
        ["init", "--dir", "FILE/below"],
        ["simulate", "--rows", "-1"],
        ["spark-package", "--output", "FILE/below/x.zip"],
        ["ui", "--dir", "nowhere"],
    ],
)
def test_commands_without_a_config(run: Run, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "file").write_text("")
    one_error(run, *(word.replace("FILE", str(tmp_path / "file")) for word in words))
