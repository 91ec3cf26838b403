"""A config for a database that was looked into runs as written; what would stop a run is seen before."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.loaded_table import open_current
from nevermore.pipelines.ingest.doctor import examine
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.ingest.quarantine_replay import replay_quarantine
from tests.pipelines.postgres.conftest import Shop

TABLES = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, placed timestamptz NOT NULL, amount numeric(10,2))",
    "CREATE TABLE notes (text text)",
    "CREATE TABLE marks (name text); ALTER TABLE marks REPLICA IDENTITY FULL",
    "CREATE SCHEMA audit; CREATE TABLE audit.entries (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
    "INSERT INTO orders VALUES (1, now(), 1.5), (2, now(), NULL)",
    "INSERT INTO marks VALUES ('a'), ('a')",
)


def run(folder: Path, *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def findings(shop: Shop, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, tuple[str, str]]]:
    capsys.readouterr()
    code = run(shop.folder, "doctor", "--config", str(shop.folder / "nevermore.yaml"), "--json")
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return code, {entry["what"]: (entry["status"], entry["found"]) for entry in found}


def test_the_config_of_a_database_runs_as_written(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.sql(*TABLES)
    address = shop.dsn.replace("ingester@", "ingester:top-secret@")
    assert run(shop.folder, "init", "--from", address, "--dir", str(shop.folder), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    text = (shop.folder / "nevermore.yaml").read_text()
    assert "top-secret" not in text + json.dumps(told)
    ready = {table["name"]: table["key"] for table in told["tables"] if table["ready"]}
    assert ready == {"audit.entries": ["id", "at"], f"{shop.database}.marks": [], f"{shop.database}.orders": ["id"]}
    assert "ALTER TABLE public.notes ADD PRIMARY KEY" in text
    assert "placed timestamp with time zone" in text

    code, before = findings(shop, capsys)
    assert code == 1
    assert before["publication"][0] == "failed"
    (create,) = (step for step in told["steps"] if "CREATE PUBLICATION" in step)
    shop.sql(create.partition("the tables, ")[2])
    code, after = findings(shop, capsys)
    assert code == 0, after
    assert after["slot"] == ("ok", "nevermore does not exist yet; the first run creates it")
    assert after["table public.orders"] == ("ok", "readable, identified by id")
    assert after["table public.marks"] == ("ok", "readable, identified by the whole row")
    assert after["clock"][0] == "ok"

    config = load(shop.folder / "nevermore.yaml")
    shop.ingest(config)
    assert shop.sql("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'nevermore'") == [(1,)]
    code, running = findings(shop, capsys)
    assert code == 0, running
    assert "of log for it" in running["slot"][1]


def test_what_would_stop_a_run_is_seen_before(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE plain (a int)")
    shop.sql("CREATE PUBLICATION pub FOR TABLE t, plain WITH (publish = 'insert, update')")
    shop.sql(
        "DO $$ BEGIN CREATE ROLE reader LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        "REVOKE ALL ON t FROM reader",
    )
    shop.source = {"dsn": shop.dsn.replace("ingester@", "reader@")}
    shop.config("t", "plain", "absent")
    code, found = findings(shop, capsys)
    assert code == 1
    assert found["right to replicate"][0] == "failed"
    assert "ALTER ROLE reader REPLICATION" in found["right to replicate"][1]
    assert found["publication"][0] == "warning"
    assert "delete, truncate" in found["publication"][1]
    assert "GRANT SELECT" in found["table public.t"][1]
    assert "not in the publication" in found["table shop.absent"][1]
    shop.source = {"dsn": "host=127.0.0.1 port=1 dbname=x user=y password=top-secret"}
    shop.config("t")
    code, found = findings(shop, capsys)
    assert code == 1
    assert found["connection"][0] == "failed"
    assert "top-secret" not in str(found)


NAMES = ('quo"te', "d.ot", "order", "Order", "new\nline", "${HOME}", "*", "[a]", "a b", "a_b", "nul\x01l", "x" * 63)


def test_tables_and_columns_of_any_name_are_read_by_the_config_as_written(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    quoted = ['"' + name.replace('"', '""') + '"' for name in NAMES]
    for number, name in enumerate(quoted):
        shop.sql(f"CREATE TABLE {name} (id int PRIMARY KEY)", f"INSERT INTO {name} VALUES ({number})")
    shop.sql(f"CREATE TABLE wide ({', '.join(f'{name} int DEFAULT 7' for name in quoted)}, PRIMARY KEY ({quoted[0]}))")
    shop.sql("INSERT INTO wide DEFAULT VALUES", 'CREATE SCHEMA "s.t"; CREATE TABLE "s.t".u (id int PRIMARY KEY)')
    shop.sql("CREATE SCHEMA s; CREATE TABLE s.t_u (id int PRIMARY KEY)")
    assert run(shop.folder, "init", "--from", shop.dsn, "--dir", str(shop.folder), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    (create,) = (step for step in told["steps"] if "CREATE PUBLICATION" in step)
    shop.sql(create.partition("the tables, ")[2])
    code, found = findings(shop, capsys)
    assert code == 0, found
    config = load(shop.folder / "nevermore.yaml")
    shop.ingest(config)
    catalog = open_catalog(config)
    found_tables = [table for name in config.tables if (table := find_table(catalog, name)) is not None]
    rows = {".".join(table.name()): open_current(table).scan().to_table().to_pylist() for table in found_tables}
    assert rows.pop(f"{shop.database}.wide") == [{name.replace("Order", "Order_"): 7 for name in NAMES}]
    assert sorted(row["id"] for found in rows.values() for row in found) == list(range(len(NAMES)))
    assert sorted(map(len, rows.values())) == [0, 0] + [1] * len(NAMES)


# Definitions of tables, what doctor says without a rename or another name, and what init writes for it.
UNFIT = {
    "tables": (
        ['CREATE TABLE "T" (id int PRIMARY KEY)', "CREATE TABLE t (id int PRIMARY KEY)"],
        ("names of tables", "warning", "shop.T, shop.t differ by case only"),
        "t_2:",
    ),
    "columns": (
        ['CREATE TABLE t (id int PRIMARY KEY, v int, "V" int)'],
        ("table public.t", "failed", 'add rename: {"V": "V_"}'),
        "rename: {V: V_}",
    ),
    "reserved": (
        ["CREATE TABLE t (_file text PRIMARY KEY, _pos int)"],
        ("table public.t", "failed", 'add rename: {"_file": "_file_", "_pos": "_pos_"}'),
        "key: [_file_]",
    ),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_names_that_other_engines_do_not_tell_apart_are_found_before_a_row_is_read(
    kind: str, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    sql, (what, status, text), written = UNFIT[kind]
    shop.sql(*sql, "CREATE PUBLICATION pub FOR ALL TABLES")
    shop.config("*")
    _, found = findings(shop, capsys)
    assert found[what][0] == status
    assert text in found[what][1]
    assert run(shop.folder, "init", "--from", shop.dsn, "--dir", str(shop.folder), "--force") == 0
    assert written in (shop.folder / "nevermore.yaml").read_text()
    code, found = findings(shop, capsys)
    assert (code, "names of tables" in found) == (0, False)


def test_two_tables_whose_names_differ_in_a_dot_only_do_not_become_one_mirror(shop: Shop) -> None:
    for schema, table in (("a", "b.c"), ("a.b", "c")):
        shop.sql(f'CREATE SCHEMA "{schema}"', f'CREATE TABLE "{schema}"."{table}" (id int PRIMARY KEY)')
    shop.sql("CREATE PUBLICATION pub FOR ALL TABLES")
    (table,) = run_once(shop.config("c", source_table="a.b.c")).tables
    assert "a.b.c may be either of two tables" in str(table.error)


@pytest.mark.each(5)
@pytest.mark.parametrize(
    "secret",
    ["secret9", "se#cret9", "se?cret9", "se@cret9", "se cret9", "s%65cret9", "s'cret9", "se/cret9", "secret9%z"],
)
@pytest.mark.parametrize("place", ["postgresql://postgres:{}@{}", "postgresql://postgres@{1}?password={0}"])
def test_no_password_gets_into_the_config(
    shop: Shop, capsys: pytest.CaptureFixture[str], secret: str, place: str
) -> None:
    shop.sql("CREATE TABLE t (id int PRIMARY KEY)")
    address = place.format(secret, shop.dsn.partition("@")[2])
    code = run(shop.folder, "init", "--from", address, "--dir", str(shop.folder))
    said = capsys.readouterr()
    files = "".join(path.read_text() for path in shop.folder.iterdir())
    assert "cret9" not in said.out + said.err + files
    if code == 0:
        assert "PGPASSWORD" in files
        assert run(shop.folder, "doctor", "--config", str(shop.folder / "nevermore.yaml")) == 1  # no publication
        assert "there is no publication" in capsys.readouterr().out


def test_rights_to_a_part_of_a_table_are_not_enough(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    reader = f"Part {shop.slot}"
    shop.sql(
        'CREATE SCHEMA "in"; CREATE TABLE "in".a (id int PRIMARY KEY, v int); CREATE TABLE b (id int PRIMARY KEY, v int)',
        'CREATE PUBLICATION "my pub" FOR TABLE "in".a, b',
        "CREATE TABLE c (id int PRIMARY KEY)",
        f'CREATE ROLE "{reader}" LOGIN REPLICATION; GRANT SELECT (id) ON b TO "{reader}"',
        f'GRANT SELECT ON "in".a TO "{reader}"',
    )
    try:
        shop.source = {"dsn": shop.dsn.replace("ingester@", f"Part%20{shop.slot}@"), "publication": "my pub"}
        shop.config("a", "b", "c")
        code, found = findings(shop, capsys)
        assert code == 1
        assert f'GRANT USAGE ON SCHEMA "in" TO "{reader}"' in found["table in.a"][1]
        assert f'GRANT SELECT ON public.b TO "{reader}"' in found["table public.b"][1]
        assert 'ALTER PUBLICATION "my pub" ADD TABLE' in found["table shop.c"][1]
        shop.sql(f'GRANT USAGE ON SCHEMA "in" TO "{reader}"; GRANT SELECT (v) ON b TO "{reader}"')
        config = shop.config("a", "b")
        code, found = findings(shop, capsys)
        assert code == 0, found
        shop.ingest(config)
    finally:
        shop.sql(f'DROP OWNED BY "{reader}"', f'DROP ROLE "{reader}"')


def test_a_decimal_is_proposed_from_the_data_where_the_column_has_no_precision(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE items (id int PRIMARY KEY, price numeric, any_number numeric, empty numeric, exact numeric(9, 2))"
    )
    shop.sql(
        "INSERT INTO items VALUES (1, 1.25, 'NaN', NULL, 1), (2, 1234.5, 1e50, NULL, 2), (3, NULL, NULL, NULL, NULL)"
    )
    shop.sql("CREATE PUBLICATION pub FOR ALL TABLES")
    assert run(shop.folder, "init", "--from", shop.dsn, "--dir", str(shop.folder)) == 0
    text = (shop.folder / "nevermore.yaml").read_text()
    config = load(shop.folder / "nevermore.yaml")
    (name,) = config.tables
    assert config.tables[name].types == {"price": "decimal(38, 2)"}
    assert "WARNING: price is numeric without precision" in text
    assert "WARNING: any_number is numeric without precision, so it is text" in text
    shop.ingest(config)
    rows = open_current(open_catalog(config).load_table(name)).scan().to_table().to_pylist()
    assert {r["id"]: r["any_number"] for r in rows} == {1: "NaN", 2: "1" + "0" * 50, 3: None}


def test_floats_that_identify_rows_and_reserved_names_are_seen_before_the_first_row(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = {
        "rows": "(a real, b double precision, c text, d int[])",
        "floats": "(a double precision PRIMARY KEY, b real)",
        "arrays": "(a int[] PRIMARY KEY, b real[])",
        "reserved": '(_file int PRIMARY KEY, _pos real, "T" int, t int)',
    }
    for name, columns in tables.items():
        shop.sql(f"CREATE TABLE {name} {columns}")
    shop.sql("ALTER TABLE rows REPLICA IDENTITY FULL", "CREATE PUBLICATION pub FOR ALL TABLES")
    shop.sql(
        "INSERT INTO rows VALUES (1.1, 'NaN', 'x', '{1,2}'), (1.1, 'NaN', 'x', '{1,2}'), (-0.0, 1e300, NULL, NULL)"
    )
    shop.sql(
        "INSERT INTO floats VALUES (0.1, 1), ('NaN', 2), (1e-300, 3)",
        "INSERT INTO arrays VALUES ('{1}', '{1.5}'), ('{}', NULL)",
    )
    shop.sql("INSERT INTO reserved VALUES (1, 2, 3, 4)")
    shop.source = {"publication": "pub"}
    shop.config("floats", "arrays", "reserved")
    code, found = findings(shop, capsys)
    assert code == 1
    assert 'add types: {"a": "string"}' in found["table public.floats"][1]
    assert 'add types: {"a": "string"}' in found["table public.arrays"][1]
    assert 'add rename: {"_file": "_file_", "_pos": "_pos_", "t": "t_"}' in found["table public.reserved"][1]
    assert run(shop.folder, "init", "--from", shop.dsn, "--dir", str(shop.folder), "--force") == 0
    code, found = findings(shop, capsys)
    assert code == 0, found
    config = load(shop.folder / "nevermore.yaml")

    def compare() -> None:
        shop.ingest(config)
        for name in tables:
            mirror = open_current(open_catalog(config).load_table(f"{shop.database}.{name}")).scan().to_table()
            rows = sorted(str([*map(str, row.values())]) for row in mirror.to_pylist())
            assert len(rows) == shop.sql(f"SELECT count(*) FROM {name}")[0][0], rows

    compare()
    shop.sql(
        "DELETE FROM rows WHERE ctid = (SELECT min(ctid) FROM rows)",
        "UPDATE rows SET c = 'y' WHERE a = 0",
        "DELETE FROM floats WHERE a = 0.1",
    )
    shop.sql("UPDATE floats SET b = 9 WHERE a = 'NaN'", "DELETE FROM arrays WHERE a = '{1}'", "DELETE FROM reserved")
    compare()
    found_rows = open_current(open_catalog(config).load_table(f"{shop.database}.rows")).scan().to_table().to_pylist()
    assert sorted(str(row["c"]) for row in found_rows) == ["x", "y"]


def test_a_slot_of_another_database_is_seen_before_the_first_run(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.sql("CREATE TABLE items (id bigint PRIMARY KEY)", "CREATE PUBLICATION pub FOR ALL TABLES")
    shop.slot = f"{shop.database}_elsewhere"
    with closing(shop.server.connect("postgres")) as other, other.cursor() as cursor:
        cursor.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [shop.slot])
        shop.config("items")
        code, found = findings(shop, capsys)
        cursor.execute("SELECT pg_drop_replication_slot(%s)", [shop.slot])
    status, what = found["slot"]
    assert (code, status) == (1, "failed")
    assert "belongs to another database, postgres" in what


def test_a_slot_that_two_projects_read_is_seen(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.sql("CREATE TABLE items (id bigint PRIMARY KEY)", "CREATE PUBLICATION pub FOR ALL TABLES")
    shop.ingest(shop.config("items"))
    mine, shop.folder = shop.folder, shop.folder / "other"
    shop.folder.mkdir()
    shop.config("items")
    code, found = findings(shop, capsys)
    assert (code, found["slot"][0]) == (0, "warning")
    assert "if another project reads it, choose another name" in found["slot"][1]
    shop.folder = mine
    with closing(shop.server.connect(shop.database)) as other, other.cursor() as cursor:
        cursor.execute("INSERT INTO items VALUES (1)")
        cursor.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [shop.slot])
    code, found = findings(shop, capsys)
    assert (code, found["slot"][0]) == (1, "failed")
    assert "by someone else" in found["slot"][1]


def test_an_ingest_that_runs_while_doctor_looks_is_no_loss(shop: Shop) -> None:
    shop.sql("CREATE TABLE items (id bigint PRIMARY KEY)", "CREATE PUBLICATION pub FOR ALL TABLES")
    config = shop.config("items")
    shop.ingest(config)
    shop.sql("INSERT INTO items VALUES (1)")
    statuses = {}
    for examined in examine(config):
        statuses[examined.finding.what] = examined.finding.status
        if examined.finding.what == "publication":
            shop.ingest(config)
    assert statuses["slot"] == "ok"


def test_a_partitioned_table_of_a_publication_of_all_tables_is_named_with_what_sends_it(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.sql("CREATE TABLE parts (id bigint PRIMARY KEY) PARTITION BY RANGE (id)")
    shop.sql(
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20)",
        "CREATE PUBLICATION pub FOR ALL TABLES",
    )
    config = shop.config("parts", source_table="public.parts")
    code, found = findings(shop, capsys)
    ((status, what),) = (said for about, said in found.items() if about.startswith("table "))
    assert (code, status) == (1, "failed"), found
    advice = what.rpartition("FOR ALL TABLES: ")[2]
    shop.sql(advice)
    assert findings(shop, capsys)[0] == 0
    shop.sql("INSERT INTO parts VALUES (1)")
    shop.ingest(config)


def test_events_that_cannot_be_decoded_do_not_stop_a_quiet_table_and_are_loaded_again(shop: Shop) -> None:
    shop.sql("CREATE TABLE people (id bigint PRIMARY KEY, born date)", "CREATE PUBLICATION pub FOR ALL TABLES")
    config = shop.config("people")
    shop.ingest(config)
    shop.sql("INSERT INTO people VALUES (1, 'infinity')")
    assert shop.ingest(config).exit_code == 3
    shop.sql("INSERT INTO people VALUES (2, '2026-01-01')")
    shop.ingest(config)
    (name,) = config.tables
    table = open_current(open_catalog(config).load_table(name)).scan()
    assert table.select("id").to_table().to_pylist() == [{"id": 2}]
    with pytest.raises(SourceError, match=r"load them again .* --keys RANGES, or all .* --from-source"):
        replay_quarantine(open_catalog(config), config, name)
