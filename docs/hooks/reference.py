"""Pages that are made from the code whenever the site is built, so that they cannot differ from it.

Makes the pages of the configuration, the formats, the commands, the metrics, the table properties, the seeded faults and
the measured results, and the JSON schema of `nevermore.yaml` for editors. What has no docstring or help text is an error.
"""

import ast
import collections.abc
import dataclasses
import inspect
import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from nevermore.pipelines.config import values
from nevermore.pipelines.config.project import SCHEMA, Config, json_schema, meanings_of
from nevermore.pipelines.config.project import SECTIONS as ALL_SECTIONS
from nevermore.scan_core import ScanOptions, Switches

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # for benchmarks and tests, which are not installed
ESCAPED = re.compile(r"`[^`]+`|[|<>]")


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the pages to those of the folder; MkDocs calls this."""
    from mkdocs.structure.files import File

    for name, make in PAGES.items():
        files.append(File.generated(config, name, content=make()))
    files.append(File.generated(config, SCHEMA, content=json.dumps(json_schema(), indent=1)))
    return files


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Let links of the notebook, beside which Jupyter finds the sources, lead to pages; MkDocs calls this."""
    return re.sub(r'(href="[\w-]+)\.md\b', r"\1.html", html) if page.file.src_uri.endswith(".ipynb") else html


def _table(head: str, rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> str:
    columns = head.split(", ")
    lines = [f"| {' | '.join(cells)} |" for cells in (tuple(columns), ("---",) * len(columns), *rows)]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# configuration

SECTIONS = {place: section for place, section in ALL_SECTIONS.items() if place != ("catalog",)}
"""Where each section stands in the file; the catalog, which takes any property, is described with the whole file."""


def configuration() -> str:
    """Every section of nevermore.yaml with its options."""
    parts = [
        "# Configuration\n",
        "Every option of `nevermore.yaml`, made from the code. Unknown options are errors. A duration is a number of seconds, or "
        "text such as `500ms`, `30s`, `5m`, `1h`, `1d`; a size is a number of bytes, or text such as `64MiB`, `2GiB`. `${NAME}` "
        "is replaced by the environment variable. Paths are relative to the file.\n",
        f"Editors complete and check a config whose first line is `# yaml-language-server: $schema={SCHEMA}`, with "
        f"[this file]({SCHEMA}) next to it; `nevermore init` writes both.\n",
    ]
    done: set[type[Any]] = set()
    for place, section in SECTIONS.items():
        if section in done:
            continue
        done.add(section)
        places = [_place(other) for other, same in SECTIONS.items() if same is section]
        parts += [f"## {_title(place)}\n", _summary(section)]
        if place:
            parts.append(f"At {' and '.join(f'`{one}`' for one in places)}.\n")
        parts.append(_options(section))
        if place == ():
            parts += ["## catalog\n", _summary(_catalog()), _options(_catalog())]
    parts += [
        "## scan\n",
        "Options of scans, at `scan`; `--scan-option NAME=VALUE` sets one for a command.\n",
        _scan_options(),
    ]
    return "\n".join(parts)


def _catalog() -> type[BaseModel]:
    return Config.model_fields["catalog"].annotation  # type: ignore[return-value]


def _place(path: tuple[str, ...]) -> str:
    if path[2:3] == ("source",):
        return "tables.NAME.source"
    return ".".join({"*": "NAME"}.get(part, part) for part in path)


def _title(path: tuple[str, ...]) -> str:
    match path:
        case ():
            return "The file"
        case (kind, "*"):
            return {"tables": "A table", "published": "A published table"}[kind]
        case (_, "*", "source", kind):
            return f"source, type: {kind}"
        case ("published", "*", *rest):
            return f"{'.'.join(rest)} of a published table"
        case (_, "*", *rest):
            return ".".join(part for part in rest if part != "*")
    return ".".join(path)


def _summary(section: type[Any]) -> str:
    return (inspect.getdoc(section) or "").partition("\n\nAttributes:")[0].strip() + "\n"


def _options(section: type[BaseModel]) -> str:
    meanings = meanings_of(section)
    rows = []
    for name, field in section.model_fields.items():
        if field.exclude:
            continue
        if name not in meanings and section is not _catalog():
            raise ValueError(f"{section.__name__}.{name} has no meaning in the docstring")
        annotation: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        default = field.default_factory() if field.default_factory is not None else field.default  # type: ignore[call-arg]
        meaning = meanings.get(name) or CATALOG[name]
        rows.append((f"`{field.alias or name}`", kind(annotation), _default(annotation, default), _cell(meaning)))
    return _table("option, value, default, meaning", rows)


CATALOG = {
    "name": "name of the catalog, which SQL catalogs store with each table.",
    "type": "kind of the catalog; its other properties are passed to PyIceberg.",
    "uri": "address of the catalog: of a database (`sqlite:///warehouse/catalog.db`), or of a service.",
    "warehouse": "folder of new tables, or a prefix such as `s3://bucket/warehouse`.",
}


def kind(annotation: Any) -> str:
    """What an option takes, in words: `duration`, `size`, words, `list of text` ..."""
    before = {getattr(part, "func", None) for part in get_args(annotation)[1:]} if _is_annotated(annotation) else set()
    if before & {values._seconds}:
        return "duration"
    if before & {values._seconds_or_off}:
        return "duration or `off`"
    if before & {values._bytes}:
        return "size"
    if before & {values._cron}:
        return "cron expression"
    if _is_annotated(annotation):
        return kind(get_args(annotation)[0])
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{str(word).lower() if isinstance(word, bool) else word}`" for word in inside)
    if origin in {Union, types.UnionType}:
        return " or ".join(dict.fromkeys(kind(part) for part in inside if part is not type(None)))
    if origin in {tuple, list, set, frozenset}:
        return f"list of {_plural(kind(inside[0]))}"
    if origin in {dict, collections.abc.Mapping}:
        names = kind(inside[0])
        return f"{_plural(kind(inside[1]))} by {'name' if names == 'text' else names}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    names = {bool: "`true`, `false`", int: "number", float: "number", str: "text", Any: "value"}
    return names.get(annotation, "text")


def _plural(text: str) -> str:
    return f"{text}s" if text in {"section", "value", "number"} else text


def _is_annotated(annotation: Any) -> bool:
    return get_origin(annotation) is Annotated


def _default(annotation: Any, value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ((), {}, "") or isinstance(value, BaseModel):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if "duration" in kind(annotation) and isinstance(value, int | float):
        return f"`{_in_units(value, ((86400, 'd'), (3600, 'h'), (60, 'm'), (1, 's'), (0.001, 'ms')))}`"
    if kind(annotation) == "size":
        return f"`{size(value)}`"
    return f"`{value}`"


def size(value: int) -> str:
    """`64MiB` for a number of bytes."""
    return _in_units(value, ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "")))


def _in_units(value: float, units: tuple[tuple[float, str], ...]) -> str:
    unit, name = next(((unit, name) for unit, name in units if value >= unit and not value % unit), units[-1])
    return f"{round(value / unit)}{name}"


def _scan_options() -> str:
    rows = []
    for section in (ScanOptions, Switches):
        meanings = meanings_of(section)
        for field in dataclasses.fields(section):
            if field.type is Switches or field.name == "switches":
                continue
            value = field.default
            shown = (
                size(value)
                if field.name.endswith("_bytes")
                else str(value).lower()
                if isinstance(value, bool)
                else value
            )
            shown = "cores" if field.name == "parallelism" else "" if value is None else f"`{shown}`"
            rows.append((f"`{field.name}`", shown, _cell(meanings[field.name])))
    return _table("option, default, meaning", rows)


# command line


def commands() -> str:
    """Every command with its options."""
    import typer

    from nevermore.pipelines.cli.main import _application

    group: Any = typer.main.get_command(_application([]))
    parts = [
        "# Command line\n",
        "Every command and option, made from the code; `nevermore COMMAND --help` prints the same. "
        "[Exit codes](promises.md#exit-codes) are the same for all of them.\n",
        "## nevermore\n",
        _parameters(group),
    ]
    for name, command in sorted(group.commands.items()):
        arguments = " ".join(_argument(given) for given in command.params if not given.opts[0].startswith("-"))
        parts += [f"## nevermore {name}\n", f"```text\nnevermore {name} [OPTIONS] {arguments}".rstrip() + "\n```\n"]
        parts += [_help(command.help), _parameters(command)]
    return "\n".join(parts)


def _argument(given: Any) -> str:
    text = (given.metavar or given.name.upper()).strip("[].") + ("..." if given.nargs == -1 else "")
    return text if given.required else f"[{text}]"


def _help(text: str) -> str:
    return (
        ESCAPED.sub(lambda found: found[0] if found[0][0] == "`" else f"\\{found[0]}", inspect.cleandoc(text)).replace(
            "\b\n", ""
        )
        + "\n"
    )


def _parameters(command: Any) -> str:
    rows = []
    for given in command.params:
        if given.hidden or given.name in {"install_completion", "show_completion"}:
            continue
        if not given.help:
            raise ValueError(f"{command.name}: {given.name} has no help")
        is_option = given.opts[0].startswith("-")
        words = ", ".join(given.opts) if is_option else _argument(given)
        if is_option and not getattr(given, "is_flag", False):
            words += f" {given.metavar or _named_type(given)}"
        default = given.default
        shown = "" if default in {None, False, ()} or default == [] or callable(default) else f"`{default}`"
        text = _cell(given.help) + (f" Environment variable: `{given.envvar}`." if given.envvar else "")
        rows.append((f"`{words.replace('|', ' or ')}`", shown, text))
    return _table("option, default, meaning", rows) if rows else ""


def _named_type(given: Any) -> str:
    annotation = given.type_descriptor.annotation
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    return {int: "NUMBER", float: "NUMBER", Path: "PATH"}.get(annotation, "TEXT")


# metrics


@dataclasses.dataclass
class _Meter:
    """Notes the instruments that a run creates."""

    found: list[tuple[str, str, str, str]] = dataclasses.field(default_factory=list)

    def create_counter(self, name: str, unit: str = "", description: str = "") -> None:
        self.found.append((name, "counter", unit, description))

    def create_observable_gauge(self, name: str, _: Any = (), unit: str = "", description: str = "") -> None:
        self.found.append((name, "gauge", unit, description))


COUNTERS = {
    "nevermore.events": "change events applied, by `op`",
    "nevermore.commits": "commits of mirrors",
    "nevermore.rows_written": "rows in new data files",
    "nevermore.bytes_written": "bytes of new data and delete files",
    "nevermore.failed_rounds": "rounds in which the table could not be ingested",
}


def metrics() -> str:
    """Every metric of `nevermore run`."""
    rows = []
    for name, sort, unit, description in instruments():
        label = "`slot`" if ".slot_" in name else "`table`"
        rows.append(
            (f"`{prometheus(name, sort, unit)}`", f"`{name}`", sort, label, _cell(description or COUNTERS[name]))
        )
    return "\n".join(
        (
            "# Metrics\n",
            "`nevermore run --listen HOST:PORT` serves these at `/metrics`, and sends them to an OpenTelemetry collector "
            "([watch a run](watch.md)). Made from the code.\n",
            _table("Prometheus, OpenTelemetry, kind, by, meaning", rows),
        )
    )


def instruments() -> list[tuple[str, str, str, str]]:
    """(name, kind, unit, description) of each metric."""
    from nevermore.pipelines.cli.watch import Watch

    meter = _Meter()
    Watch(Config(tables={}), "", 0.0).instrument(meter)
    return meter.found


def prometheus(name: str, sort: str, unit: str) -> str:
    """The name under which Prometheus sees a metric of OpenTelemetry."""
    suffix = {"By": "bytes", "s": "seconds"}.get(unit, "")
    words = name.replace(".", "_")
    words += f"_{suffix}" if suffix and not words.endswith(f"_{suffix}") else ""
    return words + ("_total" if sort == "counter" else "")


# table properties


def properties() -> str:
    """Every property that Nevermore keeps in tables and snapshots, from the constants that name them."""
    rows = [(f"`{name}`", _cell(meaning)) for name, meaning in sorted(named_properties().items())]
    return "\n".join(
        (
            "# Table properties\n",
            "What Nevermore keeps in the metadata of its tables, made from the code. Change none of them by hand; a program that replaces a table's "
            "metadata must keep them. A *key* is in the summary of a snapshot, and where a table has no snapshot yet, in its properties. "
            "Your own properties are set by `properties` of a [table](configuration.md#a-table); `nevermore.` is refused there.\n",
            _table("name, meaning", rows),
        )
    )


def named_properties() -> dict[str, str]:
    """Meanings of properties by their names."""
    found = {}
    for path in sorted((ROOT / "pipelines").rglob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node, after in zip(body, [*body[1:], None], strict=True):
            match node:
                case ast.Assign(value=ast.Constant(value=str(name))) if re.fullmatch(r"nevermore\.[a-z_.-]+", name):
                    if name == "nevermore.commands":  # the group of entry points
                        continue
                    match after:
                        case ast.Expr(value=ast.Constant(value=str(meaning))):
                            found[name + ("NAME" if name.endswith(".") else "")] = meaning
                        case _:
                            raise ValueError(f"{path}: {name} has no docstring")
    return found


# formats


def formats() -> str:
    """Every format with its options, and the options of all files."""
    from nevermore.pipelines.formats.options import ALIASES, OPTIONS
    from nevermore.pipelines.sources.file_options import FileOptions, Layout

    parts = [
        "# Formats and their options\n",
        "What `format` of a source may be, and the `options` that go with it, made from the code. [Files](sources.md) and "
        "[topics](kafka.md) need one; [the pages of the feeds](feeds.md) have an example of each. An option without effect is refused.\n",
        "## Options of all files\n",
        "Parquet and Avro files take `batch_rows`, `batch_bytes` and `unreadable` only.\n",
        _fields(FileOptions),
        "Layouts: " + ", ".join(f"`{layout.value}`" for layout in Layout) + ".\n",
    ]
    for name, options in OPTIONS.items():
        others = [f"`{alias}`" for alias, full in ALIASES.items() if full == name]
        also = f"Also written {', '.join(others)}.\n" if others else ""
        parts += [f"## {name}\n", also, _fields(options) if dataclasses.fields(options) else "No options.\n"]
    return "\n".join(parts)


def _fields(kind: type[Any]) -> str:
    meanings = {name: text for base in reversed(kind.__mro__) for name, text in meanings_of(base).items()}
    rows = []
    for field in dataclasses.fields(kind):
        value = None if field.default is dataclasses.MISSING else field.default
        shown = (
            size(value)
            if field.name.endswith("_bytes") and value > 1024
            else str(value).lower()
            if isinstance(value, bool)
            else value
        )
        rows.append((f"`{field.name}`", "" if shown in {None, "", ()} else f"`{shown}`", _cell(meanings[field.name])))
    return _table("option, default, meaning", rows)


# what tests and benchmarks found


def faults() -> str:
    """The faults that the tests of the checks inject, with the checks that find them."""
    from nevermore.checks.mirror_checks import MIRROR_CHECKS
    from tests.checks.faults import FAULTS

    order = list(MIRROR_CHECKS)
    rows = [(f.where, f.what, ", ".join(f"`{name}`" for name in sorted(f.found_by, key=order.index))) for f in FAULTS]
    return "\n".join(
        (
            "# What finds which fault\n",
            "Each of these faults is injected into a correct table; a test verifies that exactly these [checks](checks.md) fail. Made "
            "from `tests/checks/faults.py`.\n",
            _table("where, fault, found by", rows),
            "Events that a reader of files loses never reach a log, where no check could miss them. They are found while they are read: lines, "
            "records, messages, blocks and rows are counted apart from the code that splits them, and a run that would lose one ends before "
            "anything of its batch is written.\n",
        )
    )


def results() -> str:
    """What the benchmarks measured last."""
    from benchmarks.publish import comparison, missed
    from benchmarks.results import committed

    ratios = [ratio for _, ratio in sorted(committed().items())]
    return "\n".join(
        (
            "# All measured results\n",
            "Made from `benchmarks/ratios.json`; [how fast](benchmarks.md) says on which tables and versions.\n",
            "## Compared with other products\n",
            "*count* counts all rows, *aggregate* aggregates four columns, *needle* finds a few rows with a selective filter. `dense_ints` has "
            "deletes by consecutive integers, `two_strings` by two string columns, `wide_120` has 120 columns. `native` and `python` are "
            "[readers in Spark](spark-readers.md#the-two-readers).\n",
            comparison(ratios) + "\n",
            "## Goals that are missed\n",
            "Ratios are our time divided by the other's; lower is better. D is the decode floor: the time that pyarrow needs to decode exactly "
            "the columns that any correct plan has to read, including the delete key.\n",
            missed(ratios) + "\n",
        )
    )


PAGES = {
    "configuration.md": configuration,
    "formats.md": formats,
    "commands.md": commands,
    "metrics.md": metrics,
    "properties.md": properties,
    "faults.md": faults,
    "results.md": results,
}
