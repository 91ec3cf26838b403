"""Names that a package exports from its modules and loads on first use."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The values that a package's `__init__` assigns to `__getattr__`, `__dir__` and `__all__`.

    The imports under TYPE_CHECKING next to it name the same for type checkers.

    Args:
        package: its name.
        names: module -> the names in it that the package exports, separated by spaces.
    """
    module_of = {name: module for module, listed in names.items() for name in listed.split()}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    exported = sorted(module_of)
    return load, lambda: exported, exported
