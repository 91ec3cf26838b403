"""Random queries of the kinds that published tables are made by, and random rows of their tables before and after changes.

Every query gives the columns day, k and v; day is what its result is partitioned by.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence

from nevermore.scan_core.model.schema import NestedField, PrimitiveType, Schema

TABLES = {"o": {"id": "long", "cid": "long", "ts": "timestamp", "day": "date", "v": "long"},
          "c": {"id": "long", "city": "string", "rid": "long", "v": "long"},
          "l": {"oid": "long", "n": "long", "day": "date"}}  # fmt: skip
SCHEMAS = {
    name: Schema(0, tuple(NestedField(i, n, PrimitiveType(t)) for i, (n, t) in enumerate(columns.items(), 1)))
    for name, columns in TABLES.items()
}
DAYS = 4
KINDS = ("where", "group", "window", "join", "full", "half", "subquery", "set", "cte", "loose", "hidden", "leaf")
Row = tuple[object, ...]


class Queries:
    """Random queries, each of which gives the columns day, k and v."""

    def __init__(self, chance: random.Random, kinds: Sequence[str]) -> None:
        self._chance = chance
        self._kinds = kinds

    def relation(self, depth: int) -> str:
        kinds = ("leaf",) if depth == 0 else self._kinds
        return str(getattr(self, "_" + self._chance.choice(kinds))(depth - 1))

    def _leaf(self, _: int) -> str:
        return self._chance.choice([
            "select day, id as k, v from o", "select cast(ts as date) as day, cid as k, v from o",
            "select day, oid as k, n as v from l", "select day, oid as k, n as v from l where n > 1",
            "select case when v > 2 then day else cast(ts as date) end as day, cid as k, v from o",
            "select o.day, c.rid as k, o.v from o, c where o.cid = c.id", "select o.* except (o.id, o.ts), o.id as k from o".replace("o.* except (o.id, o.ts), o.id as k", "o.day, o.id as k, o.v"),
        ])  # fmt: skip

    def _keys(self, _: int) -> str:
        """A relation that need not have days."""
        return self._chance.choice([
            "select id as k, v from c", "select id as k, rid as v from c where city = 'x'", "select rid as k, max(v) as v from c group by rid",
            "select rid as k, id as v from c", "select oid as k, sum(n) as v from l group by oid", "select id as k, v from o",
            "select c.id as k, l.n as v from c left join l on l.oid = c.rid",
        ])  # fmt: skip

    def _where(self, depth: int) -> str:
        return f"select day, k, v from ({self.relation(depth)}) s where " + self._chance.choice(
            ["v > 1", "k is not null", "day = date '2026-01-02'", "coalesce(k, 0) < 3"]
        )

    def _group(self, depth: int) -> str:
        inner = self.relation(depth)
        return self._chance.choice([
            f"select day, k, sum(v) as v from ({inner}) s group by day, k", f"select day, max(k) as k, count(*) as v from ({inner}) s group by 1",
            f"select max(day) as day, k, sum(v) as v from ({inner}) s group by k", f"select distinct day, k, v from ({inner}) s",
            f"select day, k, sum(v) as v from ({inner}) s group by rollup (day, k)", f"select min(day) as day, max(k) as k, count(*) as v from ({inner}) s",
            f"select day, k, max(v) as v from ({inner}) s group by day, k having count(*) > 1",
        ])  # fmt: skip

    def _window(self, depth: int) -> str:
        inner = self.relation(depth)
        return self._chance.choice([
            f"select day, k, sum(v) over (partition by day) as v from ({inner}) s", f"select day, k, count(*) over (partition by k, day) as v from ({inner}) s",
            f"select day, k, sum(v) over (partition by k) as v from ({inner}) s", f"select day, k, v from (select day, k, v, dense_rank() over (partition by day order by v) as rn from ({inner}) s) t where rn = 1",
            f"select day, k, lag(v) over (order by day, k, v) as v from ({inner}) s", f"select day, k, v from (select day, k, v from ({inner}) s order by day, k, v limit 3) t",
        ])  # fmt: skip

    def _join(self, depth: int) -> str:
        kind = self._chance.choice(["join", "left join", "left join", "right join", "full join"])
        on = self._chance.choice(
            [
                "b.k = a.k",
                "b.k = a.v",
                "b.k = a.k and b.v > 1",
                "coalesce(b.k, 0) = a.k",
                "b.v < a.v",
                "b.k = a.k or b.v = 1",
            ]
        )
        value = self._chance.choice(["a.v + coalesce(b.v, 0)", "b.v", "a.v"])
        left, right = self.relation(depth), self._keys(depth)
        if self._chance.random() < 0.3:
            right = self.relation(depth)
            on = self._chance.choice(["b.day = a.day", "b.day = a.day and b.k = a.k", "b.k = a.k"])
        if self._chance.random() < 0.2:
            left, right, kind = right, left, {"left join": "right join", "right join": "left join"}.get(kind, kind)
            return f"select b.day, b.k, {value} as v from ({left}) a {kind} ({right}) b on {on.replace('b.day = a.day', 'true')}"
        sql = f"select a.day, a.k, {value} as v from ({left}) a {kind} ({right}) b on {on}"
        if self._chance.random() < 0.3:
            third = self._chance.choice(["join", "left join"])
            sql += f" {third} ({self._keys(depth)}) d on " + self._chance.choice(
                ["d.k = b.v", "d.k = a.k", "coalesce(b.v, 1) = d.k"]
            )
            sql = sql.replace(value, f"{value} + coalesce(d.v, 0)", 1)
        if self._chance.random() < 0.25:
            sql += " where " + self._chance.choice(["b.k is null", "coalesce(b.k, 2) = a.k", "a.v > 1", "b.v = a.k"])
        return sql

    def _full(self, depth: int) -> str:
        """Days of either side; then, perhaps, a third table, a condition, or groups."""
        chance, keys = self._chance, self._keys(depth)
        on = chance.choice(
            ["a.day = b.day", "a.day = b.day and a.k = b.k", "b.day = a.day and b.v > 1", "a.day = b.day or a.k = b.k"]
        )
        day = chance.choice(
            [
                "coalesce(a.day, b.day)",
                "coalesce(b.day, a.day)",
                "ifnull(a.day, b.day)",
                "coalesce(a.day, b.day, date '2026-01-02')",
            ]
        )
        value = chance.choice(["a.v + coalesce(b.v, 0)", "coalesce(a.v, b.v)"])
        source = f"({self.relation(depth)}) a full join ({self.relation(depth)}) b on {on}"
        more = chance.choice(
            [
                "",
                f" join ({keys}) d on d.k = b.v",
                f" left join ({keys}) d on d.k = a.k and d.v = b.v",
                f" right join ({keys}) d on d.k = b.k",
                f" full join ({keys}) d on d.k = a.k",
                " where b.k is null",
                f" where b.k in (select e.k from ({keys}) e)",
                f" where exists (select 1 from ({keys}) e where e.k = a.k)",
                f" where not exists (select 1 from ({keys}) e where e.k = b.v)",
            ]
        )
        if chance.random() < 0.2:
            return (
                f"select {day} as day, max(coalesce(a.k, b.k)) as k, sum({value}) as v from {source}{more} group by 1"
            )
        value = f"{value} + coalesce(d.v, 0)" if " d on " in more else value
        return f"select {day} as day, coalesce(a.k, b.k) as k, {value} as v from {source}{more}"  # fmt: skip

    def _half(self, depth: int) -> str:
        kind = self._chance.choice(["left semi join", "left anti join"])
        return f"select a.day, a.k, a.v from ({self.relation(depth)}) a {kind} ({self._keys(depth)}) b on b.k = a.k"

    def _subquery(self, depth: int) -> str:
        inner, keys = self.relation(depth), self._keys(depth)
        return self._chance.choice([
            f"select day, k, v from ({inner}) a where exists (select 1 from ({keys}) b where b.k = a.k)",
            f"select day, k, v from ({inner}) a where not exists (select 1 from ({keys}) b where b.k = a.v and b.v > 0)",
            f"select day, k, v from ({inner}) a where k in (select b.k from ({keys}) b)",
            f"select day, k, v from ({inner}) a where k not in (select b.k from ({keys}) b)",
            f"select day, k, v from ({inner}) a where v > 5 or k in (select b.k from ({keys}) b)",
            f"select day, k, (select max(b.v) from ({keys}) b where b.k = a.k) as v from ({inner}) a",
            f"select day, k, (select max(b.v) from ({keys}) b) as v from ({inner}) a",
            f"select day, k, (select count(*) from ({keys}) b where b.k = a.k) as v from ({inner}) a",
        ])  # fmt: skip

    def _set(self, depth: int) -> str:
        kind = self._chance.choice(["union all", "union", "except", "intersect"])
        return f"({self.relation(depth)}) {kind} ({self.relation(depth)})"

    def _cte(self, depth: int) -> str:
        return f"with w as ({self.relation(depth)}) select x.day, x.k, x.v + coalesce(y.v, 0) as v from w x left join w y on y.k = x.k" + self._chance.choice(["", " and y.day = x.day"])  # fmt: skip

    def _loose(self, depth: int) -> str:
        """Joins as they are rarely written: without LEFT, by commas, by USING, by one ON over three tables."""
        chance, inner, keys, more = self._chance, self.relation(depth), self._keys(depth), self._keys(depth)
        half = chance.choice(["semi join", "anti join", "anti join", "left semi join", "left anti join"])
        side = chance.choice(["join", "inner join", "left join", "left outer join", "right join", "full outer join"])
        value = chance.choice(["a.v", "b.v", "a.v + coalesce(b.v, 0)"])
        on = chance.choice(["b.k = a.k", "b.k = a.v and b.v > 1", "b.k = a.k and a.v > 1", "b.v = a.v"])
        halves = [
            f"select a.day, a.k, a.v from ({inner}) a {half} ({keys}) b on {on}",
            f"select a.day, a.k, a.v from ({inner}) a {half} ({keys}) b on {on} and a.day = date '2026-01-02'",
            f"select a.day, a.k, a.v from ({inner}) a join ({keys}) c on c.k = a.v {half} ({more}) b on b.k = c.v",
            f"select a.day, a.k, c.v from ({keys}) c cross join ({inner}) a {half} ({more}) b on b.k = a.k and b.v = c.v",
        ]
        tables = [
            f"select a.day, a.cid as k, a.v from o a {half} c b on b.id = a.cid and a.v > 1",
            f"select a.day, a.oid as k, a.n as v from l a {half} ({keys}) b on b.k = a.oid and a.day = date '2026-01-02'",
            f"select a.day, a.cid as k, b.v from o a {side} c b on b.id = a.cid and a.v > 1 where a.day is not null",
            f"select b.day, a.k, b.v from ({keys}) a left join o b on b.cid = a.k",
            f"select b.day, a.k, a.v from o b right join ({keys}) a on b.cid = a.k",
        ]
        triples = [
            f"select a.day, a.k, c.v from ({inner}) a cross join ({keys}) c {side} ({more}) b on b.k = a.k and b.v = c.v",
            f"select a.day, a.k, c.v from ({inner}) a cross join ({keys}) c left join ({more}) b on b.k = a.k and b.v = c.v",
            f"select a.day, a.k, c.v from ({keys}) b right join ({inner}) a on {on} join ({more}) c on c.k = coalesce(b.v, 1)",
            f"select a.day, a.k, c.v from ({keys}) b {side} ({inner}) a on {on} left join ({more}) c on c.k = b.v and c.v = a.v",
            f"select a.day, a.k, c.v from ({inner}) a {side} ({keys}) b on {on} {side} ({more}) c on c.k = b.v where a.day is not null",
        ]
        others = [
            f"select a.day, a.k, {value} as v from ({keys}) b, ({inner}) a where {on}",
            f"select a.day, a.k, {value} as v from ({inner}) a cross join ({keys}) b"
            + chance.choice(["", f" where {on}"]),
            f"select day, k, a.v from ({inner}) a {chance.choice(['join', 'left join'])} ({keys}) b using (k)",
            f"select coalesce(a.day, b.day) as day, k, b.v from ({inner}) a {side} ({self.relation(depth)}) b using (k)",
        ]
        return chance.choice(chance.choice([halves, tables, triples, others]))

    def _hidden(self, depth: int) -> str:
        """Sub-queries whose names hide names outside, or that name columns without their source."""
        chance, keys, more = self._chance, self._keys(depth), self._keys(depth)
        hiding = [
            "from l join o on o.id = l.oid", "from c o join l on l.oid = o.id", "from l o join c on c.id = o.oid",
            f"from ({keys}) o join c on c.id = o.k", f"from ({keys}) o where o.k = o.v",
        ]  # fmt: skip
        short = [
            "from l where oid = cid", "from l where oid = o.cid", "from c where rid = v", "from l o where o.oid = cid",
            "from l where l.oid = o.cid and l.day = o.day", "from l where day = o.day and n > 1",
        ]  # fmt: skip
        deep = [
            f"from ({keys}) x where x.k = o.cid and exists (select 1 from c o where o.id = x.v)",
            f"from ({keys}) x where x.k = o.cid and x.v in (select o.id from c o where o.rid = o.id)",
            f"from ({keys}) x anti join ({more}) y on y.k = x.v where x.k = o.cid",
            f"from ({keys}) x semi join ({more}) y on y.k = x.v and y.v > 1 where x.k = o.v",
            f"from ({keys}) x left join c on c.id = x.v where x.k = o.cid and c.rid = o.v",
            f"from ({keys}) x join ({more}) y on y.k = x.v and x.k = o.cid",
            f"from ({keys}) x cross join c left join ({more}) y on y.k = x.k and y.v = c.rid where x.k = o.cid",
        ]
        inner = chance.choice(chance.choice([hiding, hiding, short, deep]))
        joined = [f"from o join ({more}) p on p.k = o.cid", f"from ({more}) p left join o on o.cid = p.k"]
        outer = chance.choice(["from o", "from o", *joined])
        return chance.choice([
            f"select o.day, o.cid as k, (select count(*) {inner}) as v {outer}",
            f"select o.day, o.cid as k, o.v {outer} where exists (select 1 {inner})",
            f"select o.day, o.cid as k, o.v {outer} where not exists (select 1 {inner})",
            f"select o.day, o.cid as k, o.v {outer} where o.cid in (select 1 {inner})",
            f"select o.day, o.cid as k, max(o.v) as v {outer} group by o.day, o.cid having max(o.v) > (select count(*) {hiding[0]})",
        ])  # fmt: skip


def states(chance: random.Random) -> Iterator[tuple[str, list[Row], list[Row]]]:
    """Each table before and after some changes."""
    changing = set(chance.sample(list(TABLES), chance.choice([1, 1, 2, 3])))
    for name, columns in TABLES.items():
        before = [row_of(chance, columns) for _ in range(chance.randint(0, 7))]
        after = list(before)
        if name in changing:
            for _ in range(chance.randint(1, 2)):
                if after and chance.random() < 0.6:
                    gone = after.pop(chance.randrange(len(after)))
                    if chance.random() < 0.5:
                        changed = list(gone)
                        at = chance.randrange(len(changed))
                        changed[at] = row_of(chance, columns)[at]
                        after.append(tuple(changed))
                else:
                    after.append(row_of(chance, columns))
        yield name, before, after


def row_of(chance: random.Random, columns: dict[str, str]) -> Row:
    day = f"2026-01-0{chance.randint(1, DAYS)}"
    domains = {"long": [None, 1, 2, 3], "date": [None, day, day], "timestamp": [None, f"{day} 23:00:00", f"{day} 00:00:00"], "string": ["x", "y"]}  # fmt: skip
    return tuple(chance.choice(domains[kind]) for kind in columns.values())


def changed_rows(before: Sequence[Row], after: Sequence[Row]) -> list[Row]:
    """The rows that went, and those that came."""
    return [*(Counter(before) - Counter(after)).elements(), *(Counter(after) - Counter(before)).elements()]
