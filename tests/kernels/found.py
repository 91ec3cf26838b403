"""All compiled kernels of the product, found in its source: a new one is found without being named anywhere."""

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from numba.extending import is_jitted

from scan_core.native.machine_code import signatures

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("scan_core", "pipelines", "checks", "assets")
_POINTERS = "scan_core.native."
"""Kernels there take pointers, and can be called by the names of `machine_code.signatures` alone."""


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
    parts = file.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def importers(*libraries: str) -> set[str]:
    """Modules that import one of these libraries anywhere."""
    found = set()
    for name, tree in sources(*libraries):
        for node in ast.walk(tree):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(m.split(".")[0] in libraries for m in modules):
                found.add(name)
    return found


@cache
def jitted() -> dict[str, Any]:
    """What Numba compiles, as `module.function`."""
    found = {}
    for module in sorted(importers("numba") - {"scan_core.native.machine_code"}):
        for name, value in vars(importlib.import_module(module)).items():
            if is_jitted(value) and value.py_func.__module__ == module:
                found[f"{module}.{name}"] = value
    return found


def entries() -> set[str]:
    """The kernels that Python calls: by their own name, or as machine code."""
    homes = {name.split(".")[-2] for name in jitted()}
    called = {name for module, tree in sources("njit", *homes) for name in _used(module, tree)}
    return {name for name in jitted() if name in called and not name.startswith(_POINTERS)} | set(signatures())


def _used(module: str, tree: ast.Module) -> Iterator[str]:
    """What code that is no kernel reads by name, as `module.name`."""
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in _outside_of_kernels(tree):
        if isinstance(node, ast.Name):
            yield imported.get(node.id, f"{module}.{node.id}")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{imported.get(node.value.id)}.{node.attr}"


def _outside_of_kernels(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef) and any(
            isinstance(d, ast.Call) and isinstance(d.func, ast.Name) and d.func.id == "njit"
            for d in child.decorator_list
        ):
            continue
        yield child
        yield from _outside_of_kernels(child)


def reached(names: set[str]) -> set[str]:
    """These kernels and all that they call."""
    by_function = {id(value): name for name, value in jitted().items()}
    compiled = signatures()
    waiting = [compiled[name][0] if name in compiled else jitted()[name].py_func for name in names]
    found = set(names)
    while waiting:
        function = waiting.pop()
        for name in _globals_of(function.__code__):
            other = by_function.get(id(function.__globals__.get(name)))
            if other is not None and other not in found:
                found.add(other)
                waiting.append(jitted()[other].py_func)
    return found


def _globals_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)
