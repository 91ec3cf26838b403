"""Every key of a config is read by the product, or refused."""

import ast
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from nevermore.pipelines.config.project import Config

ROOT = Path(__file__).parents[3]
PACKAGES = ("assets", "checks", "pipelines", "scan_core")


def sections_below(model: type[BaseModel]) -> set[type[BaseModel]]:
    """A section and all that its fields may hold."""
    found: set[type[BaseModel]] = set()
    waiting: list[Any] = [model]
    while waiting:
        item = waiting.pop()
        if isinstance(item, type) and issubclass(item, BaseModel):
            if item not in found:
                found.add(item)
                waiting += [field.annotation for field in item.model_fields.values()]
        else:
            waiting += getattr(item, "__args__", ())
    return found


def test_every_key_is_read() -> None:
    read = {
        node.attr
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    sections = sections_below(Config)
    assert {"TableConfig", "PublishedConfig", "FilesSource", "SparkConfig"} <= {s.__name__ for s in sections}
    unread = {
        f"{section.__name__}.{name}"
        for section in sections
        for name, field in section.model_fields.items()
        if name not in read and field.annotation is not type(None)
    }
    assert unread == set()
