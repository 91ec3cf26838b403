"""The shell completes names of tables after every command that takes one."""

import inspect
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import get_type_hints

import pytest

COMMANDS = {entry.name: entry for entry in entry_points(group="nevermore.commands")}
FOREIGN = {"recover"}
"""Takes tables that are in no catalog."""


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - FOREIGN))
def test_every_argument_for_a_table_is_completed(command: str) -> None:
    function = COMMANDS[command].load()
    hints = get_type_hints(function, vars(inspect.getmodule(function)), include_extras=True)
    for name in {"table", "tables", "names"} & set(inspect.signature(function).parameters):
        (argument,) = hints[name].__metadata__
        assert argument.autocompletion is not None


@pytest.mark.each(4)
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("scan shop.o", ["shop.orders"]),
        ("check shop.orders shop.", ["shop.orders", "shop.items", "shop.daily"]),
        ("scan none", []),
        ("scan --config missing.yaml shop", []),
    ],
)
def test_names_of_the_config_are_offered(tmp_path: Path, words: str, offered: list[str]) -> None:
    source = "{source: {type: files, path: '*.jsonl'}, key: [id]}"
    (tmp_path / "nevermore.yaml").write_text(
        f"tables: {{shop.orders: {source}, shop.items: {source}}}\n"
        "published: {shop.daily: {sql: select id from shop.orders}}\n"
    )
    line = f"nevermore {words}"
    asked = {"_NEVERMORE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    found = subprocess.run(
        [Path(sys.executable).parent / "nevermore"],
        cwd=tmp_path,
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.split() == offered
