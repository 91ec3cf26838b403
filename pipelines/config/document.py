"""A config file as text: the template, YAML with line numbers, and validation errors; the settings of Dagster next to it.

Contains the template written by `nevermore init`, a YAML loader that fills in environment variables, and error
messages of one line each. The meaning of the values is defined in `project.py`.
"""

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nevermore.pipelines.errors import ConfigError
from nevermore.scan_core.io import remember_passwords, remember_secret, write_whole

CONFIG_VARIABLE = "NEVERMORE_CONFIG"


def find_config() -> Path | None:
    """The config that NEVERMORE_CONFIG names, or nevermore.yaml here, or that of the demo; None if there is none."""
    if named := os.environ.get(CONFIG_VARIABLE):
        return Path(named)
    return next((p for p in (Path("nevermore.yaml"), Path("demo/nevermore.yaml")) if p.is_file()), None)


def project_name(folder: Path) -> str:
    """The name of a project: that of its folder, without characters that have a meaning in addresses of Dagster's UI."""
    return re.sub(r"[^\w. -]", "_", folder.resolve().name) or "nevermore"


def workspace(folder: Path, packages: Path | None = None) -> str:
    """The workspace.yaml with which Dagster loads the definitions of a project, as a code location of its name.

    Args:
        folder: folder of the project; Dagster finds nevermore.yaml there if it is its working directory.
        packages: folder that contains `nevermore`, if it may be none of those that Python searches.
    """
    module = {"module_name": "nevermore.assets.definitions", "location_name": project_name(folder)}
    found = {} if packages is None else {"working_directory": str(packages)}
    text: str = yaml.safe_dump({"load_from": [{"python_module": module | found}]}, sort_keys=False)
    return text


TEMPLATE = """\
# What to read, into which tables, and how. Paths are relative to this file; ${NAME} is an environment variable.

catalog:
  type: sql                              # sql | rest | hive | glue; other properties are passed to PyIceberg
  uri: sqlite:///warehouse/catalog.db
  warehouse: warehouse

tables:
  shop.products:                         # the mirror; its change log is change_log.shop_products
    source:
      type: files
      path: landing/products/*.jsonl     # applied in name order; new files are picked up by the next run
      format: debezium-json
    key: [id]
    # deletes: converted                 # each run leaves positions of deleted rows, which every engine reads; equality: keys
    # order_by: position                 # or paths in the event that order the events of a key: [source.lsn]
    # types: {price: "decimal(10,2)"}    # if the feed does not declare them, or to override them
    # partition_by: [day(created_at)]    # also column, bucket(16, id), truncate(4, sku), year, month, hour
    # include: []                        # columns to keep; exclude: columns to drop
    # rename: {old_name: new_name}
    # cast: {quantity: long}
    # inserts: checked                   # trusted: inserts never have an existing key, so they need no delete row
    # soft_delete: false                 # true: keep deleted rows, with _deleted set
    # commit_rows: 1000000
    # commit_interval: 60s
    # memory_limit_bytes: 1GiB
    # max_quarantine_ratio: 0.5          # if more events are rejected, the batch fails
    # checks: {from_schema: warn}        # columns, types and NULLs; expectations of your own: see "Your own checks" in the documentation
    # index: {bitmap: [status]}   # indexes that each run keeps up to date
    # properties: {write.metadata.previous-versions-max: 100}
    # maintenance: {keep_snapshots: 10, keep_for: 5d, expire_every: 1h}   # also at the top level, for all tables

# ingest_schedule: "*/5 * * * *"         # when Dagster ingests, in UTC

# published:                             # rebuilt from mirrors day by day, with Spark
#   shop.products_daily:
#     partition: day
#     sql: >
#       select cast(updated_at as date) as day, count(*) as products
#       from shop.products group by 1
"""
"""The commented nevermore.yaml that `nevermore init` writes."""


MAX_VALUES = 100_000
MAX_DEPTH = 50
"""Far above any real config: a few lines of YAML with aliases can expand to more than fits into memory."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_SECRET = re.compile(r"pass|secret|token|credential|key_id|access|user|auth|webhook", re.IGNORECASE)
"""Matches names of options whose values may be secret."""
_TEXT_KEYS = frozenset({"tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"})
_INTEGER = "tag:yaml.org,2002:int"
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class ConfigDocument:
    """A parsed file. A place in it is the sequence of keys and indexes that leads to a value."""

    path: str
    root: yaml.MappingNode
    raw: Mapping[str, Any]

    @classmethod
    def of(cls, text: str, path: str | Path) -> "ConfigDocument":
        """Parse a text.

        Raises:
            ConfigError: not YAML, too many values, too deeply nested, not a mapping, a key that is repeated or not text, or a number that
                versions of YAML read in different ways.
        """
        try:
            loader = _Loader(text)
            root = loader.get_single_node()
            if not isinstance(root, yaml.MappingNode):
                raise ConfigError(
                    f"{path}: a config is a mapping with the sections catalog, tables and published; `nevermore init` writes one"
                )
            _check_nodes(root, path)  # first, as merge keys are replaced by what they merge when the values are built
            return cls(str(path), root, loader.construct_document(root))
        except yaml.YAMLError as error:
            raise ConfigError(_not_yaml(error, path)) from error
        except RecursionError as error:
            raise ConfigError(f"{path}: nested deeper than {MAX_DEPTH} levels") from error

    def values(self) -> dict[str, Any]:
        """The values, with ${NAME} and ${NAME:-default} replaced by environment variables.

        Raises:
            ConfigError: a variable that is not set and has no default.
        """
        filled: dict[str, Any] = self._filled(self.raw, ())
        return filled

    def where(self, place: Sequence[str | int], *, with_column: bool = False) -> str:
        """`file:line` of a place, or of the deepest part of it that exists; `file:line:column` if asked for."""
        node: yaml.Node = self.root
        mark = node.start_mark
        for step in place:
            if isinstance(node, yaml.MappingNode):
                found = [(key, value) for key, value in node.value if key.value == str(step)]
                if not found:
                    break
                mark, node = found[-1][0].start_mark, found[-1][1]  # merged values come before the own one
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                mark = node.start_mark
            else:
                break
        return f"{self.path}:{mark.line + 1}" + (f":{mark.column + 1}" if with_column else "")

    def inserted(self, text: str, section: str, entry: str) -> str:
        """The text of the file with one more entry in a section, as the first."""
        key, entries = next((key, entries) for key, entries in self.root.value if key.value == section)
        if entries.flow_style:
            at, entry = entries.start_mark.index + 1, f"{entry}, " if entries.value else entry
        else:
            at = text.index("\n", key.end_mark.index)
            entry = "\n" + " " * entries.value[0][0].start_mark.column + entry
        return text[:at] + entry + text[at:]

    def lines_of(self, *sections: str) -> dict[str, int]:
        """Line of each entry of some sections, by the name of the entry."""
        found: dict[str, int] = {}
        for key, entries in self.root.value:
            if key.value in sections and isinstance(entries, yaml.MappingNode):
                found |= {name.value: name.start_mark.line + 1 for name, _ in entries.value}
        return found

    def may_show(self, place: Sequence[str | int]) -> bool:
        """Whether a message may show the value at a place; never one from the environment or of a catalog."""
        value: Any = self.raw
        for step in place[: self.depth(place)]:
            value = value[step]
        is_secret = bool(place) and (place[0] == "catalog" or _SECRET.search(str(place[-1])) is not None)
        return not is_secret and _VARIABLE.search(str(value)) is None

    def depth(self, place: Sequence[str | int]) -> int:
        """The number of steps of a place that lead to an existing value."""
        value: Any = self.raw
        for taken, step in enumerate(place):
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return taken
        return len(place)

    def _filled(self, value: Any, place: tuple[str | int, ...]) -> Any:
        if isinstance(value, Mapping):
            return {k: self._filled(v, (*place, k)) for k, v in value.items()}
        if isinstance(value, list):
            return [self._filled(v, (*place, i)) for i, v in enumerate(value)]
        if not isinstance(value, str):
            return value

        def replace(match: re.Match[str]) -> str:
            found = os.environ.get(match[1], match[2])
            if found is None:
                raise ConfigError(f"{self.where(place)}: environment variable {match[1]} is not set")
            if match[1] in os.environ:
                remember_secret(match[1], found)
            return found

        filled = _VARIABLE.sub(replace, value)
        remember_passwords(filled)
        return filled


def one_line(value: Any) -> str:
    """A value as YAML on one line."""
    text: str = yaml.safe_dump(
        value, default_flow_style=True, width=1_000_000, allow_unicode=True, sort_keys=False
    ).strip()
    return text.removesuffix("...").strip()


class WrittenFloat(float):
    """A number that is its text in the config where text is wanted: `1.10` is not `1.1`."""

    _text: str

    def __new__(cls, text: str) -> Self:
        """The number of a text that Python can read."""
        number = super().__new__(cls, text)
        number._text = text
        return number

    def __str__(self) -> str:
        return self._text

    def __reduce__(self) -> tuple[type["WrittenFloat"], tuple[str]]:
        return type(self), (self._text,)


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, with the words and numbers of YAML 1.2, and the line number in errors about dates.

    YAML 1.1 reads `no` as false, also where text is wanted, and `1:30.5` as 90.5. Options that are true or false take `no` as text.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - as the base class has it
        first: [(tag, text) for tag, text in resolvers if tag.rpartition(":")[2] not in {"bool", "float"}]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        """A number, with its text if Python would write another one."""
        if node.value.lower().endswith((".inf", ".nan")):
            return float(super().construct_yaml_float(node))
        number = WrittenFloat(node.value)
        return float(number) if repr(float(number)) == node.value else number

    def construct_yaml_timestamp(self, node: yaml.ScalarNode) -> Any:
        try:
            return super().construct_yaml_timestamp(node)
        except ValueError as error:
            what = f"{node.value} is not a date: {error}"
            raise yaml.constructor.ConstructorError(None, None, what, node.start_mark) from error


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_timestamp)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"([-+]?((\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(inf|Inf|INF))|\.(nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)


def _check_nodes(node: yaml.Node, path: str | Path, depth: int = 0, count: Iterator[int] | None = None) -> None:
    """Refuse what versions of YAML read in different ways, and a text that expands to too many values, before building any."""
    where, count = f"{path}:{node.start_mark.line + 1}", count or itertools.count(1)
    if depth > MAX_DEPTH:
        raise ConfigError(f"{where}: nested deeper than {MAX_DEPTH} levels")
    if next(count) > MAX_VALUES:
        raise ConfigError(f"{where}: more than {MAX_VALUES} values, including those repeated by aliases")
    if node.tag == _INTEGER and not _DECIMAL.fullmatch(node.value):
        raise ConfigError(
            f"{where}: {node.value} is not a number in all versions of YAML; write it in decimal digits alone, or in quotes if "
            "it is text"
        )
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            _check_nodes(child, path, depth + 1, count)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            where = f"{path}:{key.start_mark.line + 1}"
            if key.tag not in _TEXT_KEYS:
                kind = key.tag.rpartition(":")[2]
                raise ConfigError(f"{where}: YAML reads the key {key.value} as {kind}; write it in quotes")
            if key.value in seen:
                raise ConfigError(f"{where}: {key.value!r} occurs twice")
            seen.add(key.value)
            _check_nodes(value, path, depth + 1, count)


def _not_yaml(error: yaml.YAMLError, path: str | Path) -> str:
    """The message for text that is not YAML."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"{path}: not YAML: {' '.join(str(error).split())}"
    what = error.problem or error.context or "unexpected end"
    if "'\\t'" in what:
        what = "a tab instead of spaces"
    elif error.context is not None and error.context != what:
        what = f"{error.context} {what}"
    return f"{path}:{error.problem_mark.line + 1}: not YAML: {what}"


_KINDS = (
    (("dict_type", "model_type", "model_attributes_type"), "a mapping, with one `name: value` per line"),
    (("tuple_type", "list_type"), "a name, or a list of names: [a, b]"),
    (("string_type", "string_sub_type"), "text"),
    (("bool_type", "bool_parsing"), "true or false"),
    (("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"),
    (("float_type", "float_parsing"), "a number"),
    (("finite_number",), "a finite number"),
    (("date_type", "date_parsing", "date_from_datetime_parsing"), "a date such as 2026-01-31"),
    (("path_type",), "a path"),
)
_EXPECTED: Mapping[str, str] = {kind: words for kinds, words in _KINDS for kind in kinds}
_SHOWN_CHARACTERS = 60


def config_messages(
    error: ValidationError, document: ConfigDocument, sections: Mapping[tuple[str, ...], type[BaseModel]]
) -> list[str]:
    """One line per invalid value: its line in the file, what is expected there, and the value.

    Args:
        error: all errors.
        document: the file.
        sections: models by place, with `*` for any name.
    """
    faults: dict[tuple[str | int, ...], list[ErrorDetails]] = {}
    messages: dict[tuple[str | int, ...], str] = {}
    misspelt: set[tuple[str | int | None, ...]] = set()
    exact: set[tuple[str | int, ...]] = set()
    for problem in error.errors(include_url=False):
        tagged = (*problem["loc"], *problem.get("ctx", {}).get("place", ()))
        # pydantic appends the type of a source to its place
        place = tagged[:3] + tagged[4:] if tagged[2:3] == ("source",) else tagged
        if problem["type"] == "extra_forbidden":
            messages[place], near = unknown_key(str(place[-1]), _valid_names(tagged[:-1], sections))
            misspelt.add((*place[:-1], near))
        elif problem["type"] == "missing":
            messages[place] = f"{str(place[-1])!r} is missing{f' in {_name(place[:-1])}' if place[:-1] else ''}"
        else:
            # pydantic appends the name of the type that it tried, if there are several
            place = place[: document.depth(place)]
            faults.setdefault(place, []).append(problem)
            message = wrong_value(faults[place], may_show=document.may_show(place))
            messages[place] = f"{_name(place)}: {message}" if place else message
            if problem.get("ctx", {}).get("with_column"):
                exact.add(place)
    return [
        f"{document.where(place, with_column=place in exact)}: {message}"
        for place, message in messages.items()
        if place not in misspelt
    ]


def wrong_value(problems: Sequence[ErrorDetails], *, may_show: bool = True) -> str:
    """The message for an invalid value: what it must be, or the message of a validator.

    A value that may have several types has one problem for each of them.
    """
    wanted = list(dict.fromkeys(_expectation(problem) for problem in problems))
    if not all(text.startswith("must be ") for text in wanted):
        return "; ".join(wanted)
    words = " or ".join(text.removeprefix("must be ") for text in wanted)
    value = problems[0]["input"]
    hint = "; write it in quotes" if "must be text" in wanted and isinstance(value, int | float | date) else ""
    return f"must be {words}, not {_shown(value) if may_show else 'the value given'}{hint}"


def unknown_key(name: str, valid: Sequence[str]) -> tuple[str, str | None]:
    """(message for an unknown key, the key that was probably meant)."""
    near = next(iter(get_close_matches(name, valid, n=1, cutoff=0.5)), None)
    hint = f"valid keys are {', '.join(valid)}" if near is None else f"did you mean {near!r}?"
    return f"unknown key {name!r}; {hint}", near


def _expectation(problem: ErrorDetails) -> str:
    kind, limits = problem["type"], problem.get("ctx", {})
    match kind:
        case "greater_than_equal":
            return f"must be at least {limits['ge']}"
        case "greater_than":
            return f"must be more than {limits['gt']}"
        case "less_than_equal":
            return f"must be at most {limits['le']}"
        case "less_than":
            return f"must be less than {limits['lt']}"
        case "literal_error" | "enum":
            return f"must be {limits['expected']}"
        case "value_error" | "source_type":
            return str(problem["msg"]).removeprefix("Value error, ")
        case _ if kind in _EXPECTED:
            return f"must be {_EXPECTED[kind]}"
        case _:
            return str(problem["msg"])


def _shown(value: Any) -> str:
    """A value as written in the file, cut if it is long."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case date():
            return str(value)
        case _:
            text = repr(value)
            return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _name(place: Sequence[str | int]) -> str:
    return ".".join(str(step) for step in place)


def _valid_names(place: Sequence[str | int], sections: Mapping[tuple[str, ...], type[BaseModel]]) -> list[str]:
    for pattern, model in sections.items():
        if len(pattern) == len(place) and all(p in {"*", step} for p, step in zip(pattern, place, strict=True)):
            return sorted(name for name, f in model.model_fields.items() if not f.exclude)
    return []


_DAGSTER_SETTINGS = """\
telemetry:
  enabled: false
nux:
  enabled: false  # no dialog that asks for an e-mail address
concurrency:
  pools:
    default_limit: 1  # a pool per table: one writer at a time
freshness:
  enabled: true  # `freshness` of a table in nevermore.yaml
run_retries:
  enabled: true
  max_retries: 1
  retry_on_asset_or_op_failure: false  # a run whose process died; steps try again what may pass by itself
run_launcher:  # sees whether the process of a run is gone, also after the machine went down
  module: nevermore.assets.launcher
  class: Launcher
run_monitoring:
  enabled: true
  poll_interval_seconds: 20
  free_slots_after_run_end_seconds: 10  # those of a run that was killed
"""


SPECIAL_IN_LOCATION = re.compile(r"[#?]")
"""PyIceberg takes what follows for a fragment or a query, and writes to the place before it."""
SPECIAL_IN_SQLITE = re.compile(r"\?|%[0-9A-Fa-f]{2}")
"""SQLAlchemy takes what follows for options, or decodes it, and opens another file."""


def refuse_special(special: re.Pattern[str], place: str, key: str) -> None:
    """Refuse a folder or file that libraries would take for another one.

    Raises:
        ConfigError: `special` is in `place`, to which `key` leads.
    """
    if odd := special.search(place):
        raise ConfigError(
            f"{key}: {odd[0]} in {place} has another meaning in an address, so files would be written elsewhere; use a "
            "folder without it"
        )


def dagster_home(project: Path) -> Path:
    """The project's DAGSTER_HOME; created with our settings; those of earlier versions are brought up to date.

    Raises:
        ConfigError: Dagster's files cannot be in this folder.
    """
    home = (project / ".dagster").resolve()
    refuse_special(SPECIAL_IN_SQLITE, str(home), "DAGSTER_HOME")
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "dagster.yaml"
    # what an earlier version has written is the beginning of these settings
    if not settings.exists() or _DAGSTER_SETTINGS.startswith(settings.read_text(encoding="utf-8")):
        write_whole(settings, _DAGSTER_SETTINGS)
    return home
