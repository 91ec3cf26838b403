"""What scan_core and its packages export: one list for type checkers, one for the interpreter."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

PACKAGES = ("", ".io", ".metadata", ".native", ".parts", ".spark")


@pytest.mark.parametrize("package", [f"nevermore.scan_core{name}" for name in PACKAGES])
def test_names_for_type_checkers_are_the_names_that_load(package: str) -> None:
    module = import_module(package)
    stub = ast.parse(Path(str(module.__file__)).with_suffix(".pyi").read_text())
    typed = {alias.name: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert sorted(typed) == module.__all__ == dir(module)
    for name, home in typed.items():
        assert getattr(module, name) is getattr(import_module(str(home)), name)


def test_an_unknown_name_is_an_attribute_error_that_names_the_package() -> None:
    with pytest.raises(AttributeError, match=r"module 'nevermore\.scan_core' has no attribute 'open_tabel'"):
        _ = import_module("nevermore.scan_core").open_tabel
