"""The options of every format, and the names of formats, apart from the decoders: a config is checked without loading those."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nevermore.pipelines.decode.feed import options_of
from nevermore.pipelines.decode.value_types import Encoding
from nevermore.pipelines.errors import ConfigError

if TYPE_CHECKING:
    from nevermore.pipelines.decode.schema_registry import Schemas

DEFAULT_PLACEHOLDER = "__debezium_unavailable_value"
"""What Debezium writes for a value that was not sent, unless it is told otherwise."""


@dataclass(frozen=True)
class DebeziumOptions:
    """Options of Debezium.

    Attributes:
        placeholder: the connector's `unavailable.value.placeholder`; behind `hex:`, its bytes in hexadecimal digits.
        tombstones: `ignore`, or `delete` if only they indicate deletes.
        objects: `struct`, or `text` to keep undeclared nested objects as JSON text.
    """

    placeholder: str = DEFAULT_PLACEHOLDER
    tombstones: str = "ignore"
    objects: str = "struct"

    def __post_init__(self) -> None:
        try:
            empty = not self.placeholder_bytes
        except ValueError as error:
            raise ConfigError(f"placeholder: {self.placeholder!r} has other than hexadecimal digits") from error
        if empty:
            raise ConfigError(
                "placeholder is empty; leave it out, or set the connector's unavailable.value.placeholder"
            )
        if self.tombstones not in {"ignore", "delete"}:
            raise ConfigError(f"tombstones must be ignore or delete, not {self.tombstones!r}")
        if self.objects not in {"struct", "text"}:
            raise ConfigError(f"objects must be struct or text, not {self.objects!r}")

    @property
    def placeholder_bytes(self) -> bytes:
        """The placeholder as the connector has it."""
        text = self.placeholder
        return bytes.fromhex(text.removeprefix("hex:")) if text.startswith("hex:") else text.encode()


@dataclass(frozen=True)
class DebeziumJsonOptions(DebeziumOptions):
    """Options of Debezium in messages that may name their schema by an id.

    Attributes:
        registry: address of the schema registry.
        registry_user: `name:secret`.
        registry_token: bearer token.
        registry_ca: file of certificates to trust.
        schemas: folder of files named by the id, instead of a registry: `<id>.avsc` for Avro, `<id>.desc` for Protobuf,
            `<id>.json` for JSON.
    """

    registry: str | None = None
    registry_user: str | None = None
    registry_token: str | None = None
    registry_ca: str | None = None
    schemas: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.registry is not None and self.schemas is not None:
            raise ConfigError("schemas and registry are mutually exclusive: leave out one of them")
        if self.registry is not None and not self.registry.startswith(("http://", "https://")):
            raise ConfigError(f"registry must be an http or https address, not {self.registry!r}")

    def source(self) -> "Schemas":
        """Create the source of schemas.

        Raises:
            ConfigError: the options name none.
        """
        from nevermore.pipelines.decode.schema_registry import RegistryConfig, folder, registry

        if self.schemas is not None:
            return folder(self.schemas)
        if self.registry is None:
            raise ConfigError("these messages refer to their schema by an id: set registry or schemas to where it is")
        return registry(RegistryConfig(self.registry, self.registry_user, self.registry_token, self.registry_ca))


@dataclass(frozen=True)
class DebeziumMessageOptions(DebeziumJsonOptions):
    """Options of Debezium in binary messages, which refer to their schema by an id.

    Attributes:
        schema_id_bytes: bytes of the id: 4, or 8 in Apicurio's own wire format.
    """

    schema_id_bytes: int = 4

    def __post_init__(self) -> None:
        if self.objects != DebeziumOptions.objects:
            raise ConfigError("objects has no effect for these messages: their schemas declare nested objects")
        super().__post_init__()
        if self.schema_id_bytes not in {4, 8}:
            raise ConfigError(f"schema_id_bytes must be 4 or 8, not {self.schema_id_bytes!r}")


@dataclass(frozen=True)
class CanalOptions:
    """Canal has no options."""


@dataclass(frozen=True)
class MaxwellOptions:
    """Options of Maxwell.

    Attributes:
        objects: `struct`, or `text` to keep nested objects (JSON columns) as JSON text.
    """

    objects: str = "text"


BEFORE_PREFIX = "BI_"
"""Default prefix of DMS for the names of before-image columns."""


@dataclass(frozen=True)
class DmsOptions:
    """Options of AWS DMS.

    Attributes:
        before_prefix: prefix of before-image columns.
        op_column: column with the operation in S3 rows; files without it are a full load.
        ts_column: column with the commit time in S3 rows, if there is one.
        objects: `struct`, or `text` to keep nested objects as JSON text.
    """

    before_prefix: str = BEFORE_PREFIX
    op_column: str = "Op"
    ts_column: str | None = None
    objects: str = "text"


_DATE_STYLES: Mapping[tuple[str, ...], Encoding] = {
    **{("iso", order): Encoding.NATURAL for order in ("mdy", "dmy", "ymd")},
    **{("german", order): Encoding.GERMAN for order in ("mdy", "dmy", "ymd")},
    ("iso",): Encoding.NATURAL,
    ("german",): Encoding.GERMAN,
    ("sql", "mdy"): Encoding.SQL_MDY,
    ("sql", "dmy"): Encoding.SQL_DMY,
    ("postgres", "mdy"): Encoding.POSTGRES_MDY,
    ("postgres", "dmy"): Encoding.POSTGRES_DMY,
}


@dataclass(frozen=True)
class Wal2JsonOptions:
    """Options of wal2json.

    Attributes:
        version: 1 or 2; detected for each event by default.
        date_style: the server's `DateStyle`, where it is not ISO: `SQL, DMY`. It is never guessed from values.
    """

    version: int | None = None
    date_style: str | None = None

    def __post_init__(self) -> None:
        if self.date_style is not None and _words(self.date_style) not in _DATE_STYLES:
            raise ConfigError(
                f"date_style must be what SHOW DateStyle says, as 'ISO, MDY', 'SQL, DMY', 'Postgres, MDY' or 'German, DMY', "
                f"not {self.date_style!r}"
            )

    @property
    def dates(self) -> Encoding:
        """The encoding of dates and timestamps."""
        return Encoding.NATURAL if self.date_style is None else _DATE_STYLES[_words(self.date_style)]


def _words(style: str) -> tuple[str, ...]:
    return tuple(word for word in str(style).lower().replace(",", " ").split() if word)


@dataclass(frozen=True)
class PgOutputOptions:
    """The format has no options."""


@dataclass(frozen=True)
class MysqlRowsOptions:
    """The format has no options."""


@dataclass(frozen=True)
class RowChangeOptions:
    """Options of the format.

    Attributes:
        op_column: column with the operation; by default the column of each row that has a usual name.
        ops: letter (r, c, u, d, t; b for the row before an update; x to skip) by word; the usual words, in either case,
            are known.
        ts_column: column with the source's time, which stays in the row.
        no_op: letter for rows of files without the column, which are rejected by default.
        objects: `struct`, or `text` to keep nested objects as JSON text.
    """

    op_column: str | None = None
    ops: Mapping[str, str] = field(default_factory=dict)
    ts_column: str | None = None
    no_op: str | None = None
    objects: str = "struct"

    def __post_init__(self) -> None:
        letters = {*self.ops.values(), *([self.no_op] if self.no_op else [])}
        if unknown := sorted(letters - set("rcudtbx")):
            raise ConfigError(f"ops: {', '.join(unknown)} is none of r, c, u, d, t, b, x")


OPTIONS: Mapping[str, type[Any]] = {
    "debezium-json": DebeziumJsonOptions,
    "debezium-avro": DebeziumMessageOptions,
    "debezium-protobuf": DebeziumMessageOptions,
    "canal-json": CanalOptions,
    "maxwell-json": MaxwellOptions,
    "dms": DmsOptions,
    "wal2json": Wal2JsonOptions,
    "pgoutput": PgOutputOptions,
    "mysql-rows": MysqlRowsOptions,
    "rows": RowChangeOptions,
}
"""The options of each format, by its name."""
ALIASES: Mapping[str, str] = {
    "debezium": "debezium-json",
    "protobuf": "debezium-protobuf",
    "canal": "canal-json",
    "maxwell": "maxwell-json",
    **dict.fromkeys(("dms-json", "dms-csv", "dms-parquet"), "dms"),
    **dict.fromkeys(("wal2json-1", "wal2json-2"), "wal2json"),
    **dict.fromkeys(("rows-json", "rows-csv", "rows-parquet"), "rows"),
}


def full_name(name: str | None) -> str:
    """The name of a format, which may be given by an alias.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    if name is not None and (own := ALIASES.get(name, name)) in OPTIONS:
        return own
    near = get_close_matches(name or "", OPTIONS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"valid are {', '.join(OPTIONS)}"
    raise ConfigError(f"unknown format {name!r}; {hint}")


def parse_options(kind: type[Any], options: Mapping[str, Any]) -> Any:
    """Options of a format, one of `OPTIONS`, from what a config says; unknown ones are an error.

    Raises:
        ConfigError: an unknown option, or a value that it cannot have.
    """
    valid = {f.name for f in fields(kind)}
    for name in options:
        if name not in valid:
            near = get_close_matches(name, valid, n=1)
            hint = f"did you mean {near[0]}?" if near else f"valid are {', '.join(sorted(valid))}"
            raise ConfigError(f"unknown option {name!r} of the format; {hint}")
    return options_of(kind, options)


PATH_OPTIONS = ("schemas", "registry_ca")
"""Options of formats that name files."""


def with_located_options(source: Any, folder: Path) -> Any:
    """The source with paths among its options made relative to a folder."""
    given = getattr(source, "options", {})
    paths = {n: str(folder / str(given[n])) for n in PATH_OPTIONS if given.get(n) is not None}
    return source.model_copy(update={"options": {**given, **paths}}) if paths else source
