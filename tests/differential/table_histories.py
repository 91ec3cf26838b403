"""Random tables for differential tests: commits of data and of every kind of delete, in a schema that changes.

A history is drawn by Hypothesis step by step while the table is built, so that a failing one shrinks to few steps.
Values come from small domains, on purpose: keys must collide.
"""

import datetime as dt
import decimal
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.support.iceberg_json import Column, Partition, struct
from tests.support.table_builder import BuiltFile, TableBuilder

LONG = "abcdefghijklmnop"
DOMAINS: dict[str, list[Any]] = {
    "int": [None, 0, 1, 2, -1, 2**31 - 1, -(2**31)],
    "long": [None, 0, 1, 2, -1, 2**32, 2**32 + 1, 2**63 - 1, -(2**63)],
    "string": [None, "", "a", "b", "é", "e\u0301", LONG + "1", LONG + "2", "\uffff"],
    "double": [None, 0.0, -0.0, 1.5, float("nan"), float("inf"), -1e300],
    "float": [None, 0.0, -0.0, 1.5, float("nan")],
    "boolean": [None, True, False],
    "date": [None, dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29)],
    "timestamp": [None, dt.datetime(1970, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 0, 1), dt.datetime(2024, 1, 1)],  # noqa: DTZ001
    "timestamptz": [None, dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)],
    "time": [None, dt.time(0), dt.time(23, 59, 59, 999999)],
    "decimal(9,2)": [None, decimal.Decimal("0.00"), decimal.Decimal("1.50"), decimal.Decimal("-9999999.99")],
    "decimal(30,4)": [None, decimal.Decimal("0.0000"), decimal.Decimal("1.5000"), decimal.Decimal(10**25)],
    "uuid": [None, uuid.UUID(int=0), uuid.UUID(int=2**127), uuid.UUID(int=2**128 - 1)],
    "binary": [None, b"", b"\0", b"\0\0", LONG.encode() + b"1", LONG.encode() + b"2"],
    "fixed[3]": [None, b"abc", b"ab\0", b"\xff\xff\xff"],
}
PROMOTIONS = {"int": "long", "float": "double", "decimal(9,2)": "decimal(12,2)"}
DOMAINS["decimal(12,2)"] = DOMAINS["decimal(9,2)"] + [decimal.Decimal("9999999999.99")]
FORMATS = ["parquet", "parquet", "parquet", "orc", "avro"]
KEY_SETS = [(1,), (2,), (1, 2), (2, 1), (5,), (1, 5), (3,)]
STEPS = ("data", "data", "equality", "equality", "upsert", "positions", "vector", "remove", "evolve", "repartition")


@dataclass
class History:
    """A table being built. `live` are data files of the current snapshot, `vectors` their deletion vectors."""

    table: TableBuilder
    draw: Callable[..., Any]
    formats: list[str]
    live: list[BuiltFile] = field(default_factory=list)
    vectors: dict[BuiltFile, tuple[BuiltFile, list[int]]] = field(default_factory=dict)
    next_id: int = 20

    def step(self) -> None:
        """One commit or change of schema or spec."""
        getattr(self, f"_{self.draw(st.sampled_from(STEPS))}")()

    def _data(self) -> None:
        files = [self._data_file() for _ in range(self.draw(st.integers(1, 2)))]
        if self.draw(st.booleans()) and self.table.last_sequence_number > 1 and self.table.version > 1:
            files[0].sequence_number = self.draw(st.integers(1, self.table.last_sequence_number))
        self.table.commit(*files)
        self.live += files

    def _data_file(self) -> BuiltFile:
        count = self.draw(st.integers(0, 6))
        rows = {c.name: [self._value(c.type) for _ in range(count)] for c in self.table.columns}
        partition = self._partition(self.table.spec_id)
        for part in self.table.specs[self.table.spec_id]:
            source = next((c for c in self.table.columns if c.id == part.source), None)
            if source is not None and part.transform == "identity":
                rows[source.name] = [partition[part.name]] * count
        file_format = self.draw(st.sampled_from(self.formats))
        options = {"row_group_size": 2, "max_rows_per_page": 1} if file_format == "parquet" and count else {}
        return self.table.data(rows, file_format=file_format, partition=partition, **options)

    def _partition(self, spec_id: int) -> dict[str, Any]:
        found = {}
        for part in self.table.specs[spec_id]:
            column = next(c for schema in reversed(self.table.schemas) for c in schema if c.id == part.source)
            found[part.name] = None if part.transform == "void" else self._value(column.type)
        return found

    def _value(self, kind: Any) -> Any:
        if isinstance(kind, dict):
            if self.draw(st.integers(0, 4)) == 0:
                return None
            return {f["name"]: self._value(f["type"]) for f in kind["fields"]}
        return self.draw(st.sampled_from(DOMAINS[kind]))

    def _delete_file(self) -> BuiltFile | None:
        known = {c.id: c for schema in self.table.schemas for c in schema}
        known |= {c.id: c for c in self.table.columns}
        structs = [c for schema in self.table.schemas for c in schema if c.id == 4]
        known[4] = [c for c in structs if any(f["id"] == 5 for f in c.type["fields"])][-1]
        usable = [k for k in KEY_SETS if all(i in known or i == 5 for i in k)]
        ids = self.draw(st.sampled_from(usable))
        columns = [known[4 if i == 5 else i] for i in ids]
        if self.draw(st.booleans()):
            columns = [c for c in known.values() if c in columns or self.draw(st.booleans())]
        count = self.draw(st.integers(0, 5))
        rows = {c.name: [self._value(c.type) for _ in range(count)] for c in columns}
        spec_id = self.draw(st.integers(0, len(self.table.specs) - 1))
        file_format = self.draw(st.sampled_from(self.formats))
        return self.table.equality_delete(
            rows, ids=ids, columns=columns, file_format=file_format, spec_id=spec_id, partition=self._partition(spec_id)
        )

    def _equality(self) -> None:
        self.table.commit(*(self._delete_file() for _ in range(self.draw(st.integers(1, 2)))))

    def _upsert(self) -> None:
        data = self._data_file()
        self.table.commit(data, self._delete_file())
        self.live.append(data)

    def _targets(self) -> list[BuiltFile]:
        return [f for f in self.live if f.record["record_count"]]

    def _positions(self) -> None:
        if not self._targets():
            return
        target = self.draw(st.sampled_from(self._targets()))
        found = self._some_positions(target)
        file_format = self.draw(st.sampled_from(self.formats))
        self.table.commit(self.table.position_delete([(target, p) for p in found], file_format=file_format))

    def _some_positions(self, target: BuiltFile) -> list[int]:
        last = target.record["record_count"] - 1
        return sorted(self.draw(st.sets(st.integers(0, last), min_size=1, max_size=4)))

    def _vector(self) -> None:
        if self.table.version < 3 or not self._targets():
            return
        target = self.draw(st.sampled_from(self._targets()))
        before, positions = self.vectors.get(target, (None, []))
        merged = sorted({*positions, *self._some_positions(target)})
        vector = self.table.deletion_vector(target, merged)
        self.table.commit(vector, remove=[before] if before else [])
        self.vectors[target] = (vector, merged)

    def _remove(self) -> None:
        if not self.live:
            return
        target = self.draw(st.sampled_from(self.live))
        self.live.remove(target)
        gone = [target]
        if target in self.vectors:
            gone.append(self.vectors.pop(target)[0])
        self.table.commit(remove=gone, operation="delete")

    def _evolve(self) -> None:
        columns = list(self.table.columns)
        at = self.draw(st.integers(0, len(columns) - 1))
        column = columns[at]
        change = self.draw(st.sampled_from(["rename", "drop", "promote", "add", "move", "member"]))
        sources = {p.source for spec in self.table.specs for p in spec}
        if change == "rename":
            columns[at] = replace(column, name=f"c{self._new_id()}")
        elif change == "drop" and len(columns) > 1 and column.id not in sources:
            del columns[at]
        elif change == "promote" and isinstance(column.type, str) and column.type in PROMOTIONS:
            columns[at] = replace(column, type=PROMOTIONS[column.type])
        elif change == "member" and isinstance(column.type, dict):
            columns[at] = replace(column, type=self._evolved_struct(column.type))
        elif change == "add":
            default = self.draw(st.sampled_from([None, 7])) if self.table.version > 2 else None
            new = self._new_id()
            columns.insert(at, Column(new, f"c{new}", "int", initial_default=default))
        else:
            columns.append(columns.pop(at))
        self.table.evolve(*columns)

    def _evolved_struct(self, kind: dict[str, Any]) -> dict[str, Any]:
        """A member renamed, dropped, moved or promoted, or a new one."""
        members = [dict(f) for f in kind["fields"]]
        at = self.draw(st.integers(0, len(members) - 1))
        change = self.draw(st.sampled_from(["rename", "drop", "move", "promote", "add"]))
        if change == "rename":
            members[at]["name"] = f"m{self._new_id()}"
        elif change == "drop" and len(members) > 1:
            del members[at]
        elif change == "move":
            members.append(members.pop(at))
        elif change == "promote":
            members[at]["type"] = PROMOTIONS.get(members[at]["type"], members[at]["type"])
        else:
            new = self._new_id()
            members.insert(at, {"id": new, "name": f"m{new}", "type": "int", "required": False})
        return kind | {"fields": members}

    def _new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def _repartition(self) -> None:
        usable = [c for c in self.table.columns if c.id in {1, 2, 3} and c.type not in {"timestamp", "timestamptz"}]
        if not usable:
            return
        column = self.draw(st.sampled_from(usable))
        transform = self.draw(st.sampled_from(["identity", "void"]))
        self.table.repartition(Partition(f"p{column.id}_{transform}", column.id, transform))


KEY_TYPES = [t for t in DOMAINS if t != "decimal(12,2)"]


def draw_table(
    draw: Callable[..., Any],
    folder: Path,
    *,
    most_steps: int = 7,
    formats: list[str] | None = None,
    version: int | None = None,
) -> History:
    """A random table in `folder`."""
    first, second, third = (draw(st.sampled_from(KEY_TYPES)) for _ in range(3))
    inner = draw(st.sampled_from(["int", "string", "decimal(9,2)"]))
    columns = [
        Column(1, "a", first),
        Column(2, "b", second),
        Column(3, "n", third),
        Column(4, "s", struct(Column(5, "x", inner), Column(6, "y", "string"))),
    ]
    partitions = draw(st.sampled_from([[], [], [Partition("b", 2)], [Partition("b", 2), Partition("n", 3)]]))
    version = version or draw(st.sampled_from([2, 2, 3]))
    table = TableBuilder(folder, columns, version=version, partitions=partitions)
    history = History(table, draw, formats or FORMATS)
    for _ in range(draw(st.integers(1, most_steps))):
        history.step()
    return history
