"""Names that a package exports from its modules and loads on first use."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The values that a package assigns to `__getattr__`, `__dir__` and `__all__`.

    The names are those that the stub file next to it (`.pyi`) imports, one in a line, so that type checkers see the same.
    """
    spec: Any = sys.modules[package].__spec__
    stub = spec.loader.get_data(spec.origin.removesuffix("py") + "pyi").decode()
    lines = [line.split() for line in stub.splitlines() if line.startswith("from ")]
    module_of = {name: module for _, module, _, name, *_ in lines}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    exported = sorted(module_of)
    return load, lambda: exported, exported
