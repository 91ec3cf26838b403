"""What Dagster sees. A name is imported when it is used: `nevermore ui` starts without Dagster's own imports."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nevermore.assets.definitions import load_project as load_project
    from nevermore.assets.io_manager import NevermoreIOManager as NevermoreIOManager
    from nevermore.assets.project import NevermoreResource as NevermoreResource

_MODULES = {"load_project": "definitions", "NevermoreIOManager": "io_manager", "NevermoreResource": "project"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
