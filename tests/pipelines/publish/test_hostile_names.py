"""Names of every kind in published tables: as payload, partition, key and alias, made anew and brought up to date."""

import datetime as dt
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlglot
import yaml
from pyspark.sql import SparkSession
from sqlglot import exp

from nevermore.checks.published_equality import ProjectAuditor, check_published
from nevermore.pipelines.config.project import Config, load
from nevermore.pipelines.config.published import PublishedPartition
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.publish.query import parse_query
from nevermore.pipelines.publish.refresh import publish
from nevermore.pipelines.publish.refresh_report import PublishReport
from nevermore.scan_core import OptionError, open_table
from nevermore.scan_core.model.schema import ListType, NestedField, PrimitiveType, Schema, StructType
from nevermore.scan_core.spark import require_names_apart
from tests.pipelines.cli.test_hostile_names import REFUSED, WORKING
from tests.pipelines.project import event
from tests.support.spark_session import SPARK_TEST

MIRROR, NAME = "shop.products", "shop.made"
DAY = 20_454
Rows = list[dict[str, Any]]


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class Named:
    """A mirror with a column of a name, in `key` its key, and one published table over it."""

    def __init__(self, folder: Path, name: str, *, mirror_key: str = "id0", **published: Any) -> None:
        self.folder, self.name = folder, name
        (folder / "landing").mkdir()
        source = {"type": "files", "path": "landing/*.jsonl", "format": "debezium-json"}
        mirror = {"source": source, "key": [mirror_key], "types": {"day0": "date"}}
        document = {"tables": {MIRROR: mirror}, "published": {NAME: published}}
        (folder / "nevermore.yaml").write_text(yaml.safe_dump(document))

    @property
    def config(self) -> Config:
        return load(self.folder / "nevermore.yaml")

    def land(self, name: str, *events: str) -> None:
        (self.folder / "landing" / name).write_text("".join(f"{line}\n" for line in events))
        run_once(self.config)

    def publish(self) -> PublishReport:
        report = publish(self.config, NAME, auditor=ProjectAuditor())
        told = [verdict.summary() for verdict in report.checks if verdict.table == NAME]
        assert all("not compared" not in text for text in told) or report.mode != "replace", told
        assert all(result.passed for result in check_published(self.config, NAME))
        return report

    @property
    def rows(self) -> Rows:
        rows = open_table(find_table(open_catalog(self.config), NAME)).scan().to_table().to_pylist()
        return sorted(rows, key=str)


def row(name: str, number: int, value: Any, day: int = DAY) -> dict[str, Any]:
    return {"id0": number, name: value, "day0": day}


def payload(folder: Path, name: str) -> None:
    sql = f"select id0, {quoted(name)} from {MIRROR} where {quoted(name)} <> 'x' or {quoted(name)} is null"
    both(Named(folder, name, sql=sql), lambda r: {"id0": r["id0"], name: r[name]})


def star(folder: Path, name: str) -> None:
    both(Named(folder, name, sql=f"select t.* from {MIRROR} t"), lambda r: r | {"day0": dt.date(2026, 1, 1)})


def alias(folder: Path, name: str) -> None:
    sql = f"select id0 as {quoted(name)} from {MIRROR}"
    both(Named(folder, "v0", sql=sql), lambda r: {name: r["id0"]})


def partition(folder: Path, name: str) -> None:
    sql = f"select {quoted(name)}, max(id0) as most from {MIRROR} group by {quoted(name)}"
    named = Named(folder, name, partition=f"value({quoted(name)})", incremental=True, sql=sql)
    both(named, lambda r: {name: r[name], "most": r["id0"]}, partitions=("b", "z"))


def day(folder: Path, name: str) -> None:
    sql = f"select day0 as {quoted(name)}, count(*) as n from {MIRROR} group by day0"
    named = Named(folder, "v0", partition=quoted(name), incremental=True, sql=sql)
    named.land("1.jsonl", *(event("c", row("v0", i, "a", DAY + i % 2)) for i in range(4)))
    named.publish()
    named.land("2.jsonl", event("d", row("v0", 1, "a", DAY + 1)))
    assert named.publish().partitions == ("2026-01-02",)
    first, second = dt.date(2026, 1, 1), dt.date(2026, 1, 2)
    assert named.rows == [{name: first, "n": 2}, {name: second, "n": 1}]


def source_key(folder: Path, name: str) -> None:
    """The key of the mirror, by which changed rows are found."""
    sql = f"select day0, max({quoted(name)}) as most from {MIRROR} group by day0"
    named = Named(folder, name, mirror_key=name, partition="day0", incremental=True, sql=sql)
    named.land("1.jsonl", *(event("c", {name: i, "day0": DAY + i % 2}) for i in range(4)))
    named.publish()
    named.land("2.jsonl", event("d", {name: 3, "day0": DAY + 1}))
    assert named.publish().partitions == ("2026-01-02",)
    assert [r["most"] for r in named.rows] == [2, 1]


def key(folder: Path, name: str) -> None:
    named = Named(
        folder, name, mode="upsert", key=[name], sort_by=[name], sql=f"select {quoted(name)}, id0 from {MIRROR}"
    )
    named.land("1.jsonl", event("c", row(name, 1, "a")), event("c", row(name, 2, "b")))
    named.publish()
    named.land("2.jsonl", event("d", row(name, 2, "b")), event("c", row(name, 3, "b")), event("c", row(name, 4, "c")))
    named.publish()
    assert named.rows == sorted([{name: "a", "id0": 1}, {name: "b", "id0": 3}, {name: "c", "id0": 4}], key=str)


def both(
    named: Named, of: Callable[[dict[str, Any]], dict[str, Any]], partitions: tuple[str, ...] | None = None
) -> None:
    name = named.name
    old, kept, new = row(name, 2, "b"), row(name, 3, None), row(name, 2, "z")
    named.land("1.jsonl", event("c", old), event("c", kept))
    named.publish()
    assert named.rows == sorted(map(of, [old, kept]), key=str)
    named.land("2.jsonl", event("u", new, before=old))
    assert named.publish().partitions == partitions
    assert named.rows == sorted(map(of, [new, kept]), key=str)


ROLES = {r.__name__: r for r in (payload, star, alias, partition, day, source_key, key)}


@pytest.mark.slow
@SPARK_TEST[0]
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", WORKING)
def test_every_name_works_in_every_role(name: str, role: str, tmp_path: Path) -> None:
    ROLES[role](tmp_path, name)


@pytest.mark.slow
@SPARK_TEST[0]
@pytest.mark.usefixtures("spark")
def test_a_column_with_a_backquote_is_a_partition(tmp_path: Path) -> None:
    partition(tmp_path, "b`t")


@pytest.mark.each(2)
@pytest.mark.parametrize("name", WORKING)
def test_columns_of_every_name_are_read_and_named_in_the_sql_that_is_made(name: str) -> None:
    fields = (NestedField(1, "id0", PrimitiveType("long")), NestedField(2, name, PrimitiveType("string")))
    schemas = {MIRROR: Schema(0, fields)}
    for sql in (f"select id0, {quoted(name)} from {MIRROR}", f"select t.* from {MIRROR} t", f"select * from {MIRROR}"):
        query = parse_query(NAME, sql, None, [MIRROR])
        assert query.columns(schemas)[MIRROR] == ("id0", name)
        tree = query.in_full(schemas)
        assert tree is not None
        again = sqlglot.parse_one(tree.sql(dialect="spark"), dialect="spark")
        assert [column.name for column in again.find_all(exp.Column)] == ["id0", name.lower()]


STARS = {
    "select x.id0 from (select * from {m}) x": ("id0",),
    "select * except (`*`) from {m}": ("id0", "*", "day0"),
    "select count(*) as n from {m}": ("id0",),
    "select count(`*`) as n from {m}": ("*",),
    "select x.* from (select id0, 1 as `*` from {m}) x": ("id0",),
    "with x as (select * from {m}) select `*` from x": ("*",),
    "select x.id0, `*` from (select *, 1 as n from {m}) x where n = 1": ("id0", "*"),
    "select id0 from {m} o where exists (select 1 from {m} i where i.id0 = `*`)": ("id0", "*"),
}


@pytest.mark.parametrize("sql", STARS)
def test_a_column_called_star_hides_no_other_column(sql: str) -> None:
    names = {"id0": "long", "*": "string", "day0": "date"}
    fields = tuple(NestedField(n, name, PrimitiveType(kind)) for n, (name, kind) in enumerate(names.items()))
    schemas = {MIRROR: Schema(0, fields)}
    query = parse_query(NAME, sql.format(m=MIRROR), None, [MIRROR])
    assert query.columns(schemas)[MIRROR] == STARS[sql]


def test_names_around_a_sub_query_are_found_beside_a_column_called_star() -> None:
    """The parser took the column of the outer table for one of the inner, which could have any."""
    outer = Schema(0, (NestedField(1, "id0", PrimitiveType("long")), NestedField(2, "a", PrimitiveType("long"))))
    inner = Schema(0, (NestedField(1, "x", PrimitiveType("long")), NestedField(2, "*", PrimitiveType("long"))))
    sql = "select id0 from shop.o where exists (select 1 from shop.i where x = a)"
    query = parse_query(NAME, sql, None, ["shop.o", "shop.i"])
    assert query.columns({"shop.o": outer, "shop.i": inner}) == {"shop.o": ("id0", "a"), "shop.i": ("x",)}


@pytest.mark.parametrize("name", WORKING)
def test_any_column_can_be_the_partition(name: str) -> None:
    assert PublishedPartition.parse(f"value({quoted(name)})") == PublishedPartition(name, "value", "identity")
    assert PublishedPartition.parse(f"month({quoted(name)})") == PublishedPartition(name, "month", "month")
    assert PublishedPartition.parse(quoted(name)) == PublishedPartition(name, "day", "identity")


# -- names that differ only in case ------------------------------------------------------------------------------------

TWINS = {
    "ascii": ("a", "A"),
    "accents": ("é", "É"),
    "members": ("a", "A"),
    "list": ("a", "A"),
    "sigma": ("Σ", "ς"),
    "sigmas": ("a\u03c3", "aΣ"),
    "sharp s": ("ß", "ẞ"),
    "i with dot": ("i", "İ"),
    "i and dot": ("i\u0307", "İ"),
    "i without dot": ("\u0131", "İ"),
    "long s": ("\u017f", "S"),
    "kelvin": ("k", "\u212a"),
    "iota": ("ᾳ", "ᾼ"),
}
APART = (("ß", "ss"), ("ﬁ", "fi"), ("e\u0301", "é"), ("a", "\u0430"), ("ΐ", "ϊ"))


def twin_schema(kind: str) -> Schema:
    first, second = TWINS[kind]
    text = PrimitiveType("string")
    both = (NestedField(2, first, text), NestedField(3, second, text))
    if kind in {"members", "list"}:
        struct = StructType(both)
        both = (NestedField(4, "at", struct if kind == "members" else ListType(NestedField(5, "element", struct))),)
    return Schema(0, (NestedField(1, "id0", PrimitiveType("long")), *both))


@pytest.mark.parametrize("kind", TWINS)
def test_columns_that_differ_in_case_alone_are_refused_where_the_sql_uses_them(kind: str) -> None:
    schema = twin_schema(kind)
    used = quoted(schema.names[1])
    alone = (f"select id0, {used} from {MIRROR}", f"select 1 from {MIRROR} where {used} is null")
    # where both are the same in lower case, the name of one is that of the other
    meant = alone if "at" in schema.names or len({name.lower() for name in TWINS[kind]}) == 1 else ()
    for sql in (f"select * from {MIRROR}", *meant):
        with pytest.raises(ConfigError, match="differ only in case") as refused:
            parse_query(NAME, sql, None, [MIRROR]).columns({MIRROR: schema})
        assert all(repr(f"at.{n}" if "at" in schema.names else n) in str(refused.value) for n in TWINS[kind])
    assert parse_query(NAME, f"select id0 from {MIRROR}", None, [MIRROR]).columns({MIRROR: schema}) == {
        MIRROR: ("id0",)
    }


@pytest.mark.parametrize("names", APART)
def test_columns_that_spark_tells_apart_are_taken(names: tuple[str, str]) -> None:
    require_names_apart(MIRROR, names)


@pytest.mark.slow
@SPARK_TEST[0]
def test_names_that_java_takes_for_one_are_refused(spark: SparkSession) -> None:
    """All letters that have a case: whatever Java maps to one, in Spark's two ways, is refused in pairs."""
    java = spark._jvm.java.lang.Character
    lower = spark._jvm.org.apache.commons.lang3.StringUtils.lowerCase
    root = spark._jvm.java.util.Locale.ROOT
    letters = [chr(n) for n in range(0x110000) if chr(n).lower() != chr(n) or chr(n).upper() != chr(n)]
    alike: dict[tuple[str, object], list[str]] = {}
    for letter in letters:
        alike.setdefault(("letters", java.toLowerCase(java.toUpperCase(ord(letter)))), []).append(letter)
        alike.setdefault(("lower case", lower(f"a{letter}", root)), []).append(letter)
    pairs = [pair for group in alike.values() for pair in itertools.combinations(group, 2)]
    assert len(pairs) > 1_000
    for one, other in pairs:
        with pytest.raises(OptionError, match="differ only in case"):
            require_names_apart(MIRROR, (f"a{one}", f"a{other}"))


@pytest.mark.slow
@SPARK_TEST[0]
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("role", ROLES)
def test_a_publication_says_which_columns_differ_in_case_alone(role: str, tmp_path: Path) -> None:
    name = "V0"
    document = {"payload": f"select id0, v0 from {MIRROR}", "star": f"select * from {MIRROR}"}.get(role)
    result = f"select id0 as {quoted('v0')}, id0 as {quoted(name)} from {MIRROR}"
    named = Named(tmp_path, name, sql=document or result)
    named.land("1.jsonl", event("c", {"id0": 1, "v0": "a", "V0": "b"}))
    with pytest.raises(ConfigError, match="'v0' and 'V0', which differ only in case"):
        publish(named.config, NAME, auditor=ProjectAuditor())
    assert find_table(open_catalog(named.config), NAME) is None


@pytest.mark.slow
@SPARK_TEST[0]
@pytest.mark.usefixtures("spark")
def test_columns_beside_twins_are_published_and_brought_up_to_date(tmp_path: Path) -> None:
    sql = f"select day0, count(*) as n from {MIRROR} group by day0"
    named = Named(tmp_path, "v0", partition="day0", incremental=True, sql=sql)
    named.land("1.jsonl", *(event("c", {"id0": i, "v0": "a", "V0": "b", "day0": DAY}) for i in range(3)))
    named.publish()
    named.land("2.jsonl", event("d", {"id0": 1, "v0": "a", "V0": "b", "day0": DAY}))
    assert named.publish().partitions == ("2026-01-01",)
    assert named.rows == [{"day0": dt.date(2026, 1, 1), "n": 2}]


@pytest.mark.slow
@SPARK_TEST[0]
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("name", [*REFUSED, "_FILE"])
def test_results_with_names_that_no_table_can_have_are_refused(name: str, tmp_path: Path) -> None:
    named = Named(tmp_path, "v0", sql=f"select id0 as {quoted(name)} from {MIRROR}")
    named.land("1.jsonl", event("c", {"id0": 1, "v0": "a"}))
    if name == "_FILE":
        named.publish()
        return
    with pytest.raises(ConfigError) as refused:
        publish(named.config, NAME, auditor=ProjectAuditor())
    assert "\n" not in str(refused.value)
    assert find_table(open_catalog(named.config), NAME) is None
