"""Counts of the house, printed by `make lint`: tokens of code, modules, fragments, layers, import circles, the face.

Exit status 1 beyond a limit, with the names. Imports inside functions and under TYPE_CHECKING count like all others:
a circle that is loaded late is still a circle for the reader.

The limits of tokens are in `.ci/budgets.toml`. A commit may lower them, never raise them: a new feature is paid for by
deletion. A token is a name, operator, number or text of code; docstrings, comments and layout are free.
"""

import ast
import io
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("scan_core", "pipelines", "checks", "assets")
BUDGETS = ".ci/budgets.toml"
MAX_FILES = 326
MAX_SINGLE_IMPORTERS = 22
MAX_CIRCLES = 0
MAX_IMPORTED_FROM_OUTSIDE = 6
MAX_NAMES_OF_THE_FACE = 60

_LAZY = "loaded on demand, for the time that a command takes to start"
_COMPILED = "compiled kernels"
_LARGE = "its importer would become too large"

SINGLE_IMPORTERS = {
    "nevermore.assets.demo": _LAZY,
    "nevermore.assets.launcher": "loaded by every process of Dagster",
    "nevermore.assets.sensors": _LARGE,
    "nevermore.checks.damage": _LAZY,
    "nevermore.checks.reference.candidates": _LARGE,
    "nevermore.checks.report": _LAZY,
    "nevermore.pipelines.cli.watch": _LAZY,
    "nevermore.pipelines.formats.change_rows": "a feed; the registry imports every feed",
    "nevermore.pipelines.formats.debezium_json": "a feed; the registry imports every feed",
    "nevermore.pipelines.formats.mysql_json_kernels": _COMPILED,
    "nevermore.pipelines.formats.pgoutput_kernels": _COMPILED,
    "nevermore.pipelines.formats.wal2json": "a feed; the registry imports every feed",
    "nevermore.pipelines.ingest.python_source": _LAZY,
    "nevermore.pipelines.maintain.text_search": _LARGE,
    "nevermore.pipelines.mirrors.multiset": _LARGE,
    "nevermore.pipelines.publish.refresh_plan": _LARGE,
    "nevermore.pipelines.sources.postgres.load": _LARGE,
    "nevermore.scan_core.deletes.indexes": _LARGE,
    "nevermore.scan_core.expr.rules": _LARGE,
    "nevermore.scan_core.files.orc_streams": _LAZY,
    "nevermore.scan_core.plan.runtime_pruning": _LAZY,
    "nevermore.scan_core.read.key_filter": _LAZY,
}
"""Modules whose only importer sits in the same folder, and why they are modules of their own."""


def modules(root: Path) -> dict[str, Path]:
    """Every module of the product by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found[".".join(("nevermore", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")] = (
                path
            )
    return found


def imports(tree: ast.Module, known: dict[str, Path]) -> Iterator[str]:
    """The product's modules that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                if submodule in known:
                    yield submodule
                elif node.module in known:
                    yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in graph[module]:
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return sorted(found)


def folder(module: str) -> str:
    """The package of a module."""
    return module.rpartition(".")[0]


def tokens(source: str) -> int:
    """Names, operators, numbers and texts of a module; its docstrings are no code."""
    layout = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.NL, tokenize.COMMENT, tokenize.ENCODING}
    code = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, getattr(tokenize, "FSTRING_START", -1)}
    count, previous = 0, tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        count += token.type in code or (token.type == tokenize.STRING and previous not in layout)
        previous = token.type
    return count


def wing_sizes(root: Path, sources: dict[Path, str]) -> list[tuple[str, int, int]]:
    """Each wing with its tokens and the most that it may have; a folder belongs to its longest prefix."""
    wings = tomllib.loads((root / BUDGETS).read_text())
    wing_of = {folder: wing for wing, entry in wings.items() for folder in entry["folders"]}
    sizes = Counter[str]()
    for path, source in sources.items():
        folders = [str(parent) for parent in path.relative_to(root).parents]
        sizes[next(wing_of[folder] for folder in folders if folder in wing_of)] += tokens(source)
    return [(wing, sizes[wing], entry["max_tokens"]) for wing, entry in wings.items()]


def raised_budgets(root: Path) -> list[str]:
    """Wings whose limit is above what an earlier commit set."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True).stdout

    if not (root / ".git").exists():  # a source distribution has no history
        return []
    now = tomllib.loads((root / BUDGETS).read_text())
    raised = set()
    for commit in git("log", "--format=%H", "--", BUDGETS).split():
        before = tomllib.loads(git("show", f"{commit}:{BUDGETS}"))
        raised |= {wing for wing in before.keys() & now if now[wing]["max_tokens"] > before[wing]["max_tokens"]}
    return sorted(raised)


def layer_exceptions(root: Path) -> list[str]:
    """Imports that a contract of layers ignores."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [ignored for one in contracts if one["type"] == "layers" for ignored in one.get("ignore_imports", [])]


def main(root: Path) -> int:
    """Print the counts; 1 if a limit is exceeded."""
    known = modules(root)
    sources = {module: path.read_text() for module, path in known.items()}
    stubs = {module: path.with_suffix(".pyi") for module, path in known.items()}  # name what their modules export
    listed = {module: stub.read_text() for module, stub in stubs.items() if stub.exists()}
    graph = {
        module: set(imports(ast.parse(source + "\n" + listed.get(module, "")), known)) - {module}
        for module, source in sources.items()
    }
    importers = defaultdict(set)
    for module, others in graph.items():
        for other in others:
            importers[other].add(module)
    single = sorted(
        module
        for module, path in known.items()
        if path.name != "__init__.py"
        and {folder(module)} == {folder(by) for by in importers[module]}
        and len(importers[module]) == 1
    )
    outside = sorted(
        module
        for module, by in importers.items()
        if module.startswith("nevermore.scan_core.") and any(not one.startswith("nevermore.scan_core") for one in by)
    )
    counts = (
        ("files", [*known], MAX_FILES),
        ("modules whose only importer is in their folder", single, MAX_SINGLE_IMPORTERS),
        ("of these without a reason in .ci/house.py", sorted(set(single) - set(SINGLE_IMPORTERS)), 0),
        ("reasons for modules that need none", sorted(set(SINGLE_IMPORTERS) - set(single)), 0),
        ("limits of tokens that were raised", raised_budgets(root), 0),
        ("exceptions of the layers", layer_exceptions(root), 0),
        ("import circles", [" <-> ".join(group) for group in circles(graph)], MAX_CIRCLES),
        ("names of scan_core's face", listed["nevermore.scan_core"].splitlines(), MAX_NAMES_OF_THE_FACE),
        ("modules of scan_core imported from other packages", outside, MAX_IMPORTED_FROM_OUTSIDE),
    )
    is_within = True
    for wing, size, limit in wing_sizes(root, {known[module]: source for module, source in sources.items()}):
        print(f"{size:6} tokens of {wing} (at most {limit})")
        is_within = is_within and size <= limit
    for what, names, most in counts:
        print(f"{len(names):6} {what} (at most {most})")
        if len(names) > most:
            is_within = False
            print("".join(f"         {name}\n" for name in names), end="")
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent.parent))
