"""Options that mean nothing for the files at hand are refused: every option with every kind of file, every format."""

import io
from dataclasses import fields
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore.pipelines.decode.batches import RawEvents, from_documents
from nevermore.pipelines.decode.feed import options_of
from nevermore.pipelines.errors import ConfigError, SourceError
from nevermore.pipelines.formats.options import OPTIONS
from nevermore.pipelines.formats.registry import FORMATS
from nevermore.pipelines.sources.file_options import FileOptions
from nevermore.pipelines.sources.files import discover
from tests.pipelines.formats.decoded_feed import read

LINE = b'{"op": "c", "id": 1}\n'
VALUES: dict[str, Any] = {
    "layout": "lines", "batch_rows": 10, "batch_bytes": 4096, "comments": ("#",), "first_line": 2, "last_line": 1,
    "delimiter": ";", "header": False, "columns": ("a",), "null_value": "x", "key_separator": "|",
    "report_incomplete": True, "unreadable": "quarantine",
}  # fmt: skip
LINES = {"layout", "comments", "first_line", "last_line"}
FOR_ALL = {"batch_rows", "batch_bytes", "unreadable"}
MEANT = {
    "parquet": FOR_ALL,
    "avro": FOR_ALL,
    "lines": FOR_ALL | LINES | {"report_incomplete"},
    "csv": FOR_ALL | {"delimiter", "header", "columns", "null_value", "report_incomplete"},
    "keyed-lines": FOR_ALL | (LINES - {"layout"}) | {"key_separator", "report_incomplete"},
    "documents": FOR_ALL | {"comments", "report_incomplete"},
    "array": FOR_ALL | {"comments", "report_incomplete"},
    "framed": FOR_ALL | {"report_incomplete"},
    "psql": FOR_ALL | {"comments", "first_line", "last_line", "report_incomplete"},
}


def content_of(kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "parquet":
        pq.write_table(pa.table({"op": ["c"], "id": [1]}), out)
    elif kind == "avro":
        schema = {"type": "record", "name": "r", "fields": [{"name": "op", "type": "string"}]}
        fastavro.writer(out, schema, [{"op": "c"}])
    return out.getvalue() or {
        "csv": b"op,id\nc,1\n", "keyed-lines": b'{"id": 1}\t' + LINE, "array": b"[" + LINE + b"]",
        "framed": len(LINE).to_bytes(4, "big") + LINE, "documents": b'{\n"op": "c",\n"id": 1}\n',
    }.get(kind, LINE)  # fmt: skip


@pytest.mark.parametrize("kind", MEANT)
def test_options_of_files_are_refused_where_they_mean_nothing(tmp_path: Path, kind: str) -> None:
    suffix = {"parquet": "parquet", "avro": "avro", "csv": "csv"}.get(kind, "json")
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content_of(kind))
    assert set(VALUES) == {f.name for f in fields(FileOptions)}
    known = {} if kind in {"parquet", "avro", "csv", "lines"} else {"layout": kind}
    refused = set()
    for name, value in VALUES.items():
        if name == "layout" and (known or kind == "csv"):
            continue
        try:
            list(discover([str(path)], None, FileOptions(**{**known, name: value})))
        except ConfigError as error:
            assert name in str(error)  # noqa: PT017  most do not raise
            refused.add(name)
    if known or kind == "csv":
        refused.add("layout")
    assert refused == (set(VALUES) - MEANT[kind] | ({"layout"} if known or kind == "csv" else set()))


GIVEN: dict[str, Any] = {
    "placeholder": "x", "tombstones": "delete", "objects": "struct", "registry": "http://r.invalid", "registry_user": "a:b",
    "registry_token": "t", "registry_ca": "c", "schemas": "s", "schema_id_bytes": 8, "before_prefix": "OLD_",
    "op_column": "what", "ts_column": "id", "ops": {"c": "c"}, "no_op": "u", "version": 1, "date_style": "ISO, MDY",
}  # fmt: skip
OF_SCHEMAS = {"registry", "registry_user", "registry_token", "registry_ca", "schemas"}
OF_MESSAGES = {"tombstones", "schema_id_bytes"} | OF_SCHEMAS
NOTHING_IN_COLUMNS = {
    "debezium-json": {"tombstones", "objects"} | OF_SCHEMAS, "debezium-avro": OF_MESSAGES, "dms": {"objects"}, "rows": {"objects"},
}  # fmt: skip
NOTHING_IN_JSON = {"dms": {"op_column", "ts_column"}}


@pytest.mark.parametrize("in_columns", [True, False], ids=["columns", "JSON"])
@pytest.mark.parametrize("name", FORMATS)
def test_options_of_formats_are_refused_where_they_mean_nothing(name: str, *, in_columns: bool) -> None:
    table = pa.table({"op": ["c"], "what": ["c"], "Op": ["I"], "id": [1]})
    raw = from_documents(pa.array([LINE], pa.binary()))
    if in_columns:
        raw = RawEvents(**{**raw.__dict__, "documents": None, "rows": table})
    refused, names = (
        set(),
        {f.name for f in fields(OPTIONS[name])} - ({"objects"} if name == "debezium-avro" else set()),
    )
    for option in names:
        value = "text" if option == "objects" and name in {"rows", "debezium-json"} else GIVEN[option]
        try:
            read(name, raw=raw, options={option: value})
        except ConfigError as error:
            if "has no effect" in str(error):
                refused.add(option)
        except SourceError:
            pass
    assert refused == (NOTHING_IN_COLUMNS if in_columns else NOTHING_IN_JSON).get(name, set())


@pytest.mark.parametrize("name", ["canal-json", "maxwell-json", "wal2json"])
def test_formats_of_json_alone_refuse_files_of_columns(name: str) -> None:
    raw = from_documents(pa.nulls(1, pa.binary()))
    raw = RawEvents(**{**raw.__dict__, "documents": None, "rows": pa.table({"id": [1]})})
    with pytest.raises(SourceError, match=f"format {name} is JSON"):
        read(name, raw=raw)


def test_debezium_avro_has_no_option_for_undeclared_objects() -> None:
    with pytest.raises(ConfigError, match="objects has no effect for these messages: their schemas"):
        read("debezium-avro", LINE, options={"objects": "text"})


WRONG: dict[str, Any] = {
    "text": [5, 1.5, True, ["a"], {"a": "b"}],
    "a whole number": ["x", "1.0", "1_000", "+5", "-1", "1e3", "", "٣", "9" * 5_000, "true", 1.5, True, None, [1]],
    "true or false": ["yes", "no", "on", "off", "y", "n", "t", "1", "0", "", "perhaps", 1, None, []],
    "a name, or a list of names: [a, b]": ["a", 5, [5], [None], {"a": "b"}],
    "a mapping, with one `name: value` per line": ["a", 5, ["a"], {"a": 1}, {1: "a"}],
}


@pytest.mark.parametrize("kind", [FileOptions, *dict.fromkeys(OPTIONS.values())])
def test_every_option_of_another_type_is_refused_and_shown_unless_it_may_be_secret(kind: type) -> None:
    for option in fields(kind):
        with pytest.raises(ConfigError, match=f"^{option.name} must be ") as refused:
            options_of(kind, {option.name: object()})
        words = str(refused.value).removeprefix(f"{option.name} must be ").partition(", not ")[0]
        for value in WRONG[words]:
            if (option.name, value) == ("comments", "a") or (value is None and option.default is None):
                continue
            with pytest.raises(ConfigError, match=f"^{option.name} must be .*, not ") as refused:
                options_of(kind, {option.name: value})
            shown = str(refused.value).partition(", not ")[2]
            if words == "text":
                assert shown.startswith("the value given")
            elif isinstance(value, str):
                assert shown.startswith(repr(value)[:60])


def test_options_may_be_text_as_environment_variables_are() -> None:
    given = {"batch_rows": " 10 ", "header": "False ", "comments": "#", "delimiter": "1", "null_value": "true"}
    options, _ = FileOptions.split(given)
    assert (options.batch_rows, options.header, options.comments) == (10, False, ("#",))
    assert (options.delimiter, options.null_value) == ("1", "true")


@pytest.mark.parametrize(
    "options", [{"first_line": 0}, {"last_line": -1}, {"first_line": 3, "last_line": 2}, {"comments": ["#", ""]}]
)
def test_options_that_leave_no_line_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"leave no line|empty prefix"):
        FileOptions.split(options)
