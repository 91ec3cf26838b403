"""All compiled kernels of the product, found in its source: a new one is found without being named anywhere."""

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType

from nevermore.scan_core.native.machine_code import ArrayKernel, Callee, signatures

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("scan_core", "pipelines", "checks", "assets")


@cache
def _texts() -> dict[str, str]:
    """Of modules, by name."""
    files = (file for package in PACKAGES for file in (REPOSITORY / package).rglob("*.py"))
    return {_module(file): file.read_text(encoding="utf-8") for file in files}


def sources(*words: str) -> Iterator[tuple[str, ast.Module]]:
    """Modules whose text has one of these words, by name."""
    for name, text in _texts().items():
        if any(word in text for word in words):
            yield name, ast.parse(text)


def _module(file: Path) -> str:
    parts = ("nevermore", *file.relative_to(REPOSITORY).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def importers(*libraries: str) -> set[str]:
    """Modules that import one of these libraries anywhere."""
    found = set()
    for name, tree in sources(*libraries):
        for node in ast.walk(tree):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(m in libraries or m.split(".")[0] in libraries for m in modules):
                found.add(name)
    return found


@cache
def declared() -> dict[str, Callee]:
    """Functions that are compiled, those alone that others call included, as `module.function`."""
    found = {}
    for module in sorted(importers("nevermore.scan_core.native.machine_code", "nevermore.scan_core.native")):
        for name, value in vars(importlib.import_module(module)).items():
            if isinstance(value, Callee) and value.__module__ == module:
                found[f"{module}.{name}"] = value
    return found


def entries() -> set[str]:
    """The kernels that Python calls: by their own name, or by those of `machine_code.signatures`."""
    return {name for name, own in declared().items() if isinstance(own, ArrayKernel)} | set(signatures())


def reached(names: set[str]) -> set[str]:
    """These kernels and all that they call."""
    by_function = {id(value): name for name, value in declared().items()}
    compiled = signatures()
    waiting = [compiled[name][0] if name in compiled else declared()[name].function for name in names]
    found = set(names)
    while waiting:
        function = waiting.pop()
        for name in _globals_of(function.__code__):
            other = by_function.get(id(function.__globals__.get(name)))
            if other is not None and other not in found:
                found.add(other)
                waiting.append(declared()[other].function)
    return found


def _globals_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)
