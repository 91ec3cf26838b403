"""A small shop and its change feed: customers, orders and order lines as Debezium JSON, in batches.

The shop's database is a few DuckDB tables of (key, version); a row's columns are functions of these, so every image of
a row can be had at any time. Seeded: the same arguments write the same changes. A batch is several rounds of inserts,
updates, deletes, re-inserts and key changes, so one batch holds several changes of one key. From the fifth batch on, some new
customers have an e-mail address without @, as if the form of the shop no longer looked at it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import duckdb

from nevermore.scan_core.io import temporary_folder

FIRST_DAY = date(2026, 1, 1)
ROUNDS_PER_BATCH = 4
DEFAULT_BATCHES = 4
SMALLEST_ROWS = 200
"""Below this a batch would lack some kinds of change."""


@dataclass(frozen=True, slots=True)
class SimulatedFile:
    """A landed file: its table, path and number of events by kind: insert, update, delete, re-insert, key change."""

    table: str
    path: Path
    events: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Entity:
    """One table: its share of all events, its key columns, and SQL for new keys, changed keys and rows.

    New keys are made from `n`, a running number; changed keys and rows from the key columns, `version` and `born` (the
    batch of the insert).
    """

    name: str
    share: float
    key: tuple[str, ...]
    new_key: tuple[str, ...]
    changed_key: tuple[str, ...]
    row: str


_CUSTOMERS = _Entity(
    name="customers",
    share=0.15,
    key=("id",),
    new_key=("n",),
    changed_key=("id + 1000000",),
    row="""{
        id: id,
        name: 'Customer ' || id,
        email: case when id % 11 = 0 then null
                    when born >= 5 and id % 7 = 0 then 'c' || id || '.example.org'
                    else 'c' || id || '.' || version || '@example.org' end,
        city: pick(['Berlin', 'Lagos', 'Lima', 'Lyon', 'Oslo', 'Pune', 'Québec', 'Zürich', null], hash(id, version, seed())),
        credit: (hash(id, seed(), version) % 1000000 / 100)::decimal(10, 2)::varchar,
        updated_at: moment(born, hash(id, version))
    }""",
)
_ORDERS = _Entity(
    name="orders",
    share=0.35,
    key=("id",),
    new_key=("n",),
    changed_key=("id + 1000000",),
    row="""{
        id: id,
        customer_id: 1 + floor(greatest(1, id % 1000000 * 0.4) * power(hash(id, seed()) % 10000 / 10000, 3))::bigint,
        status: pick(['new', 'paid', 'packed', 'shipped', 'returned'], hash(version, id)),
        amount: (500 + hash(id, seed(), version) % 30000 / 100)::decimal(12, 2)::varchar,
        note: case when hash(id, version) % 3 = 0 then 'Nevermore, "quoth" № ' || version end,
        ordered_at: moment(born, id)
    }""",
)
_ORDER_LINES = _Entity(
    name="order_lines",
    share=0.50,
    key=("order_id", "line_no"),
    new_key=("1 + n * 7 // 10", "1 + n % 3"),
    changed_key=("order_id", "line_no + 100"),
    row="""{
        order_id: order_id,
        line_no: line_no,
        product: pick(['raven', 'quill', 'ink', 'parchment', 'bust of Pallas', 'lamp'], hash(order_id, line_no)),
        quantity: (1 + hash(version, line_no, seed()) % 9)::integer,
        price: (1 + hash(order_id, seed()) % 20000 / 100)::decimal(10, 2)::varchar,
        gift: case hash(order_id, version) % 4 when 0 then null when 1 then true else false end
    }""",
)
_ENTITIES = (_CUSTOMERS, _ORDERS, _ORDER_LINES)

_MOMENT = """
create macro moment(born, salt) as strftime(
    first_day() + to_days((born - 1)::integer) + to_milliseconds((hash(born, salt) % 86400000)::bigint),
    '%Y-%m-%dT%H:%M:%S.%fZ')
"""

# Hot keys (one in ten) change four times as often; the thresholds are chances per live row and round.
_CHOOSE = """
create or replace temp table chosen as
select *, case when u < {update} then 'update' when u < {delete} then 'delete'
               when ({changed}) in (select ({key}) from {name} union all select ({key}) from {name}_gone) then 'update'
               else 'key change' end as kind
from (
    select *, hash({key}, {round}, seed()) / 18446744073709551616.0
              / case when hash({key}) % 10 = 0 then 4 else 1 end as u
    from {name}
) where u < {rekey}
"""


def simulate(
    landing: Path, *, seed: int, rows: int, batches: int = DEFAULT_BATCHES, first_day: date = FIRST_DAY
) -> Iterator[list[SimulatedFile]]:
    """Write `landing/<table>/<batch>.jsonl`, about `rows` events in all; yields the files of each batch.

    Batch n holds the orders of the n-th day from `first_day` on, and changes to earlier ones.

    Raises:
        ValueError: fewer than SMALLEST_ROWS rows or no batch.
    """
    if rows < SMALLEST_ROWS or batches < 1:
        raise ValueError(f"at least {SMALLEST_ROWS} rows and 1 batch are needed, not {rows} and {batches}")
    with duckdb.connect(config={"temp_directory": str(temporary_folder())}) as database:
        database.execute("set threads = 1; set timezone = 'UTC'")  # one thread: the order of rows is part of the seed
        database.execute(f"create macro seed() as {int(seed)}")
        database.execute(f"create macro first_day() as timestamp '{first_day}'")
        database.execute(_MOMENT)
        database.execute("create macro pick(choices, chance) as choices[1 + (chance % len(choices))::bigint]")
        for entity in _ENTITIES:
            key = ", ".join(f"{column} bigint" for column in entity.key)
            database.execute(f"create table {entity.name} ({key}, version bigint, born bigint)")
            database.execute(f"create table {entity.name}_gone as from {entity.name}")
            database.execute(f"create sequence {entity.name}_running")
            database.execute(f"create macro {entity.name}_row({', '.join(entity.key)}, version, born) as {entity.row}")
        database.execute("create sequence position")
        for batch in range(1, batches + 1):
            share = (0.6 if batch == 1 else 0.4 / (batches - 1)) if batches > 1 else 1.0
            yield [
                _write_batch(
                    database, entity, batch, max(ROUNDS_PER_BATCH * 6, int(rows * share * entity.share)), landing
                )
                for entity in _ENTITIES
            ]


def _write_batch(
    database: duckdb.DuckDBPyConnection, entity: _Entity, batch: int, events: int, landing: Path
) -> SimulatedFile:
    database.execute("""create or replace temp table changes
        (kind varchar, op varchar, before struct(k bigint[], version bigint, born bigint),
         after struct(k bigint[], version bigint, born bigint), lsn bigint)""")
    for number in range(ROUNDS_PER_BATCH):
        _round(database, entity, batch, batch * ROUNDS_PER_BATCH + number, events // ROUNDS_PER_BATCH)
    path = landing / entity.name / f"{batch:06d}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    midnight = f"epoch_ms(first_day() + to_days({batch - 1}))"
    before, after = (
        f"case when {image} is not null then {entity.name}_row("
        f"{', '.join(f'{image}.k[{i + 1}]' for i in range(len(entity.key)))}, {image}.version, {image}.born) end"
        for image in ("before", "after")
    )
    database.execute(f"""
        copy (
            select {before} as before, {after} as after,
                   {{version: '3.2.0.Final', connector: 'postgresql', name: 'shop', ts_ms: {midnight} + lsn,
                     snapshot: 'false', db: 'shop', schema: 'shop', "table": '{entity.name}', txId: lsn // 10,
                     lsn: lsn}} as source,
                   op, {midnight} + 500 + lsn as ts_ms, null as transaction
            from changes order by lsn
        ) to '{partial}' (format json)""")
    partial.rename(path)  # a landing folder never shows half a file
    counts = database.execute("select kind, count(*) from changes group by kind order by kind").fetchall()
    return SimulatedFile(f"shop.{entity.name}", path, dict(counts))


def _round(database: duckdb.DuckDBPyConnection, entity: _Entity, batch: int, number: int, events: int) -> None:
    """One round: choose among the live rows, add new ones, bring some deleted ones back; no key twice."""
    key = ", ".join(entity.key)
    live = database.execute(f"select count(*) from {entity.name}").fetchall()[0][0]
    inserts = events if live == 0 else int(events * 0.4)
    chance = min(0.5, (events - inserts) / max(1, live) / 1.3)
    database.execute(
        _CHOOSE.format(
            name=entity.name,
            key=key,
            changed=", ".join(entity.changed_key),
            round=number,
            update=chance * 0.6,
            delete=chance * 0.95,
            rekey=chance,
        )
    )
    was = f"{{k: [{key}], version: version, born: born}}"
    becomes = f"{{k: [{key}], version: {number}, born: born}}"
    changed = f"{{k: [{', '.join(entity.changed_key)}], version: {number}, born: born}}"
    new = f"{{k: [{', '.join(entity.new_key)}], version: {number}, born: {batch}}}"
    database.execute(f"""
        insert into changes
        select kind, op, before, after, nextval('position') from (
            select 'insert' as kind, 'c' as op, null as before, {new} as after
            from (select nextval('{entity.name}_running') as n from range({inserts}))
            union all
            select kind, if(kind = 'delete', 'd', 'u'), {was},
                   case kind when 'update' then {becomes} when 'key change' then {changed} end
            from chosen
            union all
            select 're-insert', 'c', null, {becomes}
            from {entity.name}_gone where hash({key}, {number}) % 8 = 0
        ) order by hash(before, after)""")
    _apply(database, entity, number)


def _apply(database: duckdb.DuckDBPyConnection, entity: _Entity, number: int) -> None:
    """Bring the shop's tables to the state after this round."""
    name, key = entity.name, ", ".join(entity.key)
    columns = ", ".join(f"after.k[{i}] as {column}" for i, column in enumerate(entity.key, 1))
    database.execute(f"""
        create or replace temp table arrived as
        select {columns}, after.version as version, after.born as born from changes
        where after.version = {number};
        delete from {name} where ({key}) in (select ({key}) from chosen);
        delete from {name} where ({key}) in (select ({key}) from arrived);
        delete from {name}_gone where ({key}) in (select ({key}) from arrived);
        insert into {name} from arrived;
        insert into {name}_gone select {key}, version, born from chosen where kind = 'delete'""")
