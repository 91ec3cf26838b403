"""Values beyond all bounds of the libraries that cast them: refused with their reason, while the rest goes on."""

import base64
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.decode.casting import cast_each
from nevermore.pipelines.decode.feed_schemas import decimal_type, mysql_type, postgres_type
from nevermore.pipelines.decode.json_columns import decimals_of_bytes
from tests.pipelines.formats.decoded_feed import canal, changes, read, reasons
from tests.pipelines.project import Project, event, the

DECIMAL = "org.apache.kafka.connect.data.Decimal"


@pytest.mark.parametrize("arguments", [["--few"], pytest.param([], marks=pytest.mark.slow)])
def test_no_cast_raises_ends_the_process_or_gives_another_number(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "tests.pipelines.decode.hostile_casts", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr[-2000:]) == (0, "")
    assert int(done.stdout.split()[0]) > (1_000 if arguments else 1_000_000)


def test_hostile_values_go_to_quarantine_and_the_others_into_the_table(tmp_path: Path) -> None:
    project = Project(tmp_path)
    source = {"type": "files", "path": "landing/*.jsonl", "format": "debezium-json"}
    table = {"source": source, "key": ["id"], "types": {"n": "decimal(38, 10)"}, "max_quarantine_ratio": 1}
    project.write({"shop.products": table})
    hostile = [
        "1e-999999999",
        {"scale": -2_000_000_000, "value": "AQ=="},
        "9" * 5_000,
        {"scale": 2**63 - 1, "value": "AQ=="},
    ]
    values = ["1.5", *hostile, "0e-999999999", {"scale": 1, "value": "AQ=="}]
    project.land("1.jsonl", [event("c", {"id": n, "n": value}) for n, value in enumerate(values)])
    report = the(project.run())
    assert report.rejected == len(hostile)
    assert {row["id"]: row["n"] for row in project.rows()} == {0: Decimal("1.5"), 5: Decimal(0), 6: Decimal("0.1")}


@pytest.mark.each(2)
@pytest.mark.parametrize("break_", ["", "\n"], ids=["lines", "pretty"])
@pytest.mark.parametrize("kind", ["decimal(38, 0)", "string"])
def test_a_first_number_of_very_many_digits_harms_no_other_event(tmp_path: Path, kind: str, break_: str) -> None:
    project = Project(tmp_path)
    options = {"unreadable": "quarantine"}
    source = {"type": "files", "path": "landing/*.jsonl", "format": "debezium-json", "options": options}
    project.write({"shop.products": {"source": source, "key": ["id"], "types": {"n": kind}, "max_quarantine_ratio": 1}})
    numbers = {1: "9" * 5_000, 2: "2", 3: "3"}
    events = [event("c", {"id": key, "n": "@"}).replace('"@"', number) for key, number in numbers.items()]
    project.land("1.jsonl", [text.replace("{", "{" + break_) for text in events])
    report = the(project.run())
    expected = numbers if kind == "string" else {2: Decimal(2), 3: Decimal(3)}
    assert {row["id"]: row["n"] for row in project.rows()} == expected
    assert report.rejected == 3 - len(expected)


@pytest.mark.parametrize(
    ("scale", "unscaled", "expected"),
    [(-3, 5, "5000"), (40, 100, "1e-38"), (0, 7, "7"), (2, -150, "-1.50"), (40, 1, "1e-40"), (-1_000, 5, "5e1000"), (-2_000_000_000, 1, None)],
)  # fmt: skip
def test_scale_of_a_schema_is_that_of_its_values_however_far_it_is_from_what_iceberg_has(
    scale: int, unscaled: int, expected: str | None
) -> None:
    wanted = decimal_type(scale, 5)
    text = base64.b64encode(unscaled.to_bytes(2, "big", signed=True)).decode()
    row = {"op": "c", "before": None, "after": {"id": 1, "n": text}, "source": {"table": "products"}}
    field = {
        "field": "n",
        "type": "bytes",
        "name": DECIMAL,
        "parameters": {"scale": str(scale), "connect.decimal.precision": "5"},
    }
    schema = {
        "type": "struct",
        "fields": [{"field": "after", "type": "struct", "fields": [{"field": "id", "type": "int64"}, field]}],
    }
    decoded = read("debezium-json", {"schema": schema, "payload": row})
    assert [Decimal(r["after"]["n"]) for r in changes(decoded)] == ([] if expected is None else [Decimal(expected)])
    if pa.types.is_string(wanted.arrow):  # more digits than a decimal has
        return
    values, bad = decimals_of_bytes(pa.array([unscaled.to_bytes(2, "big", signed=True)]), wanted.arrow, wanted.scale)
    assert (values.to_pylist(), bad.tolist()) == ([None if expected is None else Decimal(expected)], [expected is None])


BROKEN_FIELDS: list[Any] = [
    {"field": "n", "type": "bytes", "name": DECIMAL, "parameters": {"scale": "abc"}},
    {"field": "n", "type": "bytes", "name": DECIMAL, "parameters": {"scale": None}},
    {"field": "n", "type": "bytes", "name": DECIMAL, "parameters": 5},
    {"field": ["n"], "type": "bytes"},
    {"field": "n", "type": "array", "items": 5},
    {"field": "n", "type": "struct", "fields": [{"type": "int32"}]},
]


@pytest.mark.parametrize("field", BROKEN_FIELDS)
def test_event_with_a_broken_schema_is_refused_alone(field: Any) -> None:
    payload = {"op": "c", "before": None, "after": {"id": 1, "n": "AQ=="}, "source": {"table": "products"}}
    schema = {
        "type": "struct",
        "fields": [{"field": "after", "type": "struct", "fields": [{"field": "id", "type": "int64"}, field]}],
    }
    decoded = read("debezium-json", payload, {"schema": schema, "payload": payload})
    assert len(changes(decoded)) == 1
    assert reasons(decoded) == ["not a schema envelope of Kafka Connect: parts are missing or of another kind"]


@pytest.mark.parametrize("arguments", ["abc", "9" * 5_000, "99999999999,-5", "5,", "-1,2"])
def test_arguments_of_sql_types_that_are_none_are_not_read(arguments: str) -> None:
    assert mysql_type(f"decimal({arguments})") == mysql_type("decimal")
    assert postgres_type(f"numeric({arguments})") == postgres_type("numeric")


def test_negative_scale_of_postgres_leaves_room_for_its_zeros() -> None:
    assert postgres_type("numeric(3,-2)").arrow == pa.decimal128(5, 0)


@pytest.mark.parametrize("names", [[1], [{"a": 1}], [["id"]], [None]])
def test_names_of_keys_that_are_none_are_no_key(names: list[Any]) -> None:
    decoded = read("canal-json", canal("INSERT", [{"id": "1", "n": "a"}], pkNames=names), key=())
    assert reasons(decoded) == ["no key: the feed declares none; set it in the config (key: [...])"]


@pytest.mark.parametrize(
    ("held", "arrow"),
    [
        (pa.array([2**62]).view(pa.timestamp("s")), pa.date32()),
        (pa.array([2**62]).view(pa.timestamp("ms")), pa.time64("us")),
        (pa.array([2**62]).view(pa.timestamp("s")), pa.string()),
        (pa.array([b"\x01" * 16], pa.binary(16)), pa.bool_()),
        (pa.array([19.999]), pa.decimal128(10, 2)),
        (pa.array([5e-324]), pa.decimal128(10, 2)),
    ],
)
def test_values_that_arrow_would_wrap_around_round_or_refuse_as_a_whole_are_none(
    held: pa.Array, arrow: pa.DataType
) -> None:
    values, bad = cast_each(pa.concat_arrays([held, pa.nulls(1, held.type)]), arrow)
    assert (values.to_pylist(), bad.tolist()) == ([None, None], [True, False])


def test_json_of_a_key_with_an_extreme_number_is_refused_alone() -> None:
    good = {"op": "c", "after": {"id": 1}, "source": {"table": "products"}}
    bad = json.dumps({**good, "after": {"id": "X"}}).replace('"X"', "1e999999999").encode()
    decoded = read("debezium-json", good, bad, types={"id": "decimal(20, 0)"})
    assert (len(changes(decoded)), len(reasons(decoded))) == (1, 1)
