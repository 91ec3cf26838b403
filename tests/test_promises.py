"""Nothing is promised that is not there: options, command-line options, extras, dependencies and environment variables."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata, packages_distributions
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
READ_BY_SPARK = {"HADOOP_CONF_DIR"}
NO_VARIABLES = {
    "BYTE_STREAM_SPLIT",  # encodings of Parquet
    "DELTA_BINARY_PACKED",
    "FAILED_READ_FILE",  # a condition of Spark's errors
    "OFF_PERMISSIVE",  # values of gtid_mode of MySQL
    "ON_PERMISSIVE",
    *(
        "KAFKA_PASSWORD",
        "CATALOG_URI",
        "CLIENT_ID",
        "CLIENT_SECRET",
        "S3_ENDPOINT",
        "ADLS_KEY",
        "S3_KEY",
        "S3_SECRET",
        "DAGSTER_POSTGRES_URL",
        "SHOP_DSN",
        "SHOP_WEBHOOK",
    ),  # of examples
    "PRINCIPAL_ROLE",  # a scope of Polaris
    "SASL_SSL",  # a protocol of Kafka
    "REGISTRY_USER",  # a name that an example of a config chooses
    "XDG_RUNTIME_DIR",  # the docs say why it is not used
}
NOT_IMPORTED = {
    "cramjam",  # fastavro needs it for blocks in Snappy and Zstandard
    "pandas",  # PySpark turns results into Arrow through it
    "dagster-webserver",  # `nevermore ui` starts it as a process of its own
}


@cache
def trees() -> dict[str, ast.Module]:
    """Every module of the product by its path."""
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text())
        for package in ("assets", "checks", "pipelines", "scan_core")
        for path in (ROOT / package).rglob("*.py")
    }


CHECKING = {"__post_init__", "from_mapping"}
"""Methods that refuse wrong values: an option that only they look at has no effect."""


@cache
def classes_of_options() -> dict[str, set[str]]:
    """Names of the fields of each class of options or limits."""
    return {
        node.name: {
            item.target.id
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
        for tree in trees().values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name.endswith(("Options", "Limits"))
    }


@cache
def attributes_read() -> set[str]:
    """Names of all attributes that the product reads, except where options are checked."""
    found = set()
    waiting: list[ast.AST] = list(trees().values())
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef) and node.name in CHECKING:
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        waiting += ast.iter_child_nodes(node)
    return found


def test_every_option_is_read() -> None:
    declared = classes_of_options()
    assert {"ScanOptions", "WriterOptions", "NativeLimits", "SourceOptions", "FileOptions"} <= set(declared)
    unread = {f"{name}.{field}" for name, fields in declared.items() for field in fields - attributes_read()}
    assert unread == set()


def commands() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path, tree in trees().items():
        if path.endswith("commands.py"):
            yield from ((path, node) for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_option_of_a_command_is_read() -> None:
    unread = {
        f"{function.name}({argument.arg})"
        for _, function in commands()
        for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        if argument.arg
        not in {
            node.id
            for statement in function.body
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
    }
    assert unread == set()


def test_every_command_that_is_installed_exists() -> None:
    there = {f"nevermore.{path[:-3].replace('/', '.')}:{function.name}" for path, function in commands()}
    assert set(PROJECT["entry-points"]["nevermore.commands"].values()) <= there


def required_packages() -> set[tuple[str, str]]:
    """Modules that `require_package` imports on demand, each with what it says to install."""
    calls = [node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    arguments = [[ast.unparse(call.func), *map(ast.unparse, call.args)] for call in calls]
    found = [given[given.index("require_package") + 1 :] for given in arguments if "require_package" in given]
    return {(ast.literal_eval(given[0]), ast.literal_eval(given[-1])) for given in found}


def installed_by(extra: str) -> set[str]:
    """The packages of an extra, and of the extras that it includes."""
    wanted = [Requirement(line) for line in PROJECT["optional-dependencies"][extra]]
    within = (installed_by(other) for w in wanted if w.name == PROJECT["name"] for other in w.extras)
    return {canonicalize_name(w.name) for w in wanted}.union(*within)


@pytest.mark.slow
def test_what_a_missing_package_says_to_install_has_it() -> None:
    owners = packages_distributions()
    assert len(required_packages()) >= 4
    for module, install in required_packages():
        extra = install.removeprefix("nevermore-iceberg[").rstrip("]")
        names = installed_by(extra) if extra in PROJECT["optional-dependencies"] else {Requirement(install).name}
        assert names & {canonicalize_name(owner) for owner in owners[module.split(".")[0]]}, module


def imported_distributions() -> set[str]:
    """Distributions of which the product imports a module."""
    modules = {
        name.split(".")[0]
        for tree in trees().values()
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom) and node.module is not None
            else []
        )
    }
    modules |= {name.split(".")[0] for name, _ in required_packages()}
    owners = packages_distributions()
    return {canonicalize_name(owner) for module in modules for owner in owners.get(module, ())}


def test_every_pin_can_be_installed_on_the_oldest_python() -> None:
    """A package that is installed here may refuse the Python of Debian 12, on which `make docs` must work, too."""
    oldest = default_environment() | {"python_version": "3.11", "python_full_version": "3.11.2"}
    pins = [
        Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] not in {"", "#"}
    ]
    refused = []
    for pin in pins:
        try:
            found = metadata(pin.name)
        except PackageNotFoundError:
            continue  # of an extra that this environment is without
        is_meant = pin.marker is None or pin.marker.evaluate(dict(oldest))
        if is_meant and found["Version"] in pin.specifier:
            allowed = SpecifierSet(found.get("Requires-Python") or "")
            refused += [] if oldest["python_full_version"] in allowed else [f"{pin}: {allowed}"]
    assert not refused


def test_every_dependency_is_imported() -> None:
    wanted = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    assert wanted - imported_distributions() - NOT_IMPORTED == set()


TOOLS = {"dev", "docs"}
"""Extras of those who work on the project itself."""


def test_every_extra_belongs_to_what_the_product_imports() -> None:
    known = imported_distributions() | NOT_IMPORTED | {"nevermore-iceberg"}
    extras = {
        f"{extra}: {line}"
        for extra, lines in PROJECT["optional-dependencies"].items()
        for line in lines
        if extra not in TOOLS and canonicalize_name(Requirement(line).name) not in known
    }
    assert extras == set()


@pytest.mark.parametrize("extra", ["ingest", "kafka", "mysql", "postgres"])
def test_the_extra_of_a_feed_is_enough_to_ingest_it(extra: str) -> None:
    # a catalog that commits, and the kernels that decode
    assert installed_by(extra) >= {"pyiceberg", "tenacity", "requests", "fastavro", "llvmlite", "numba"}


def test_all_is_every_extra_of_the_product() -> None:
    extras = PROJECT["optional-dependencies"]
    (whole,) = (Requirement(line) for line in extras["all"])
    apart = {"all", "s3"}  # s3fs cannot be installed beside the versions of constraints.txt
    assert whole.extras == {*extras} - TOOLS - apart


def texts() -> set[str]:
    """Every string of the product but docstrings."""
    found = set()
    for tree in trees().values():
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found |= {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
        }
    return found


def test_every_environment_variable_of_the_docs_is_read() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("[!b]*.md")]  # benchmarks.md tells of other engines' settings
    named = {name for page in pages for name in re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", page.read_text())}
    assert {"NEVERMORE_CONFIG", "NO_COLOR"} <= named
    assert named - texts() - READ_BY_SPARK - NO_VARIABLES == set()


def test_every_variable_of_ours_is_in_the_docs() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    ours = {text for text in texts() if re.fullmatch(r"NEVERMORE_[A-Z_]+", text)}
    assert {name for name in ours if name not in pages} == {"NEVERMORE_CRASH_AT"}  # for tests of crashes alone


PEERS = {"merge_peer", "peer", "store_peer"}
"""What benchmarks start in the environment of the other engines, with arguments of their own."""
HELP = """
import importlib, runpy, sys
names = sys.argv[1:]
for name in names:
    importlib.import_module(name)
    source = open(importlib.util.find_spec(name).origin).read()
    if "if __name__ ==" in source and name.rpartition(".")[2] not in {peers}:
        sys.argv = [name, "--help"]
        del sys.modules[name]
        try:
            runpy.run_module(name, run_name="__main__")
        except SystemExit as end:
            assert not end.code, name
        else:
            raise AssertionError(f"{{name}} runs instead of printing its help")
"""


def test_every_benchmark_can_be_imported_and_prints_its_help() -> None:
    names = [f"benchmarks.{path.stem}" for path in sorted((ROOT / "benchmarks").glob("*.py"))]
    command = [sys.executable, "-c", HELP.format(peers=PEERS), *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("usage: ") > 20


def test_no_text_has_marks_of_a_conflict() -> None:
    listed = subprocess.run(
        ["git", "grep", "-lIE", "^(<{7}|>{7}) "], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert listed.returncode != 0, listed.stdout
