"""A random history of one table: which steps it takes, and everything that Java reads at its end."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

from tests.interop.histories import commits, creation, evolution, references
from tests.interop.histories.gateway import Java
from tests.interop.histories.reading import dump
from tests.interop.histories.table import Fields, JavaTable, Row
from tests.interop.histories.values import random_value

STEPS: dict[Callable[["History"], str], int] = {
    commits.append: 20,
    commits.delete_by_equality: 30,
    commits.delete_by_position: 14,
    commits.compact: 8,
    commits.rewrite_delete_file: 4,
    commits.remove_file: 4,
    commits.overwrite: 3,
    evolution.change_schema: 16,
    evolution.change_spec: 8,
    evolution.upgrade: 3,
    references.branch_or_tag: 8,
    references.move_main: 3,
    references.expire: 2,
    references.rewrite_manifests: 3,
}


@dataclass
class History:
    """The state that steps share. `seen` are rows once written, by field id: deletes name them."""

    rng: random.Random
    java: Java
    table: JavaTable
    formats: list[str]
    seen: list[Row] = field(default_factory=list)
    dropped_names: list[str] = field(default_factory=list)
    names: int = 0
    drops_member: Any = None
    """The schema update that already drops a member: another one might leave a struct without."""

    def one_in(self, n: int) -> bool:
        return self.rng.randrange(n) == 0

    def format(self) -> str:
        return self.rng.choice(self.formats)

    def branch(self) -> str:
        """The branch that the next commit goes to, mostly main."""
        refs = self.table.table.refs()
        branches = sorted(name for name in refs if refs[name].isBranch() and name != "main")
        return self.rng.choice(branches) if branches and self.one_in(2) else "main"

    def new_name(self) -> str:
        """A column name: a new one, an odd one, or that of a column that is gone."""
        if self.dropped_names and self.one_in(2):
            return self.rng.choice(self.dropped_names)
        self.names += 1
        return f"{self.rng.choice(['n', 'n', 'N', 'a b', 'é', '1-'])}{self.names}"

    def rows(self, fields: Fields, fewest: int = 0) -> list[Row]:
        """New rows."""
        count = self.rng.randint(fewest, 7) if not self.one_in(12) else self.rng.randint(40, 90)
        return [
            {f["id"]: random_value(self.rng, f["type"], required=f["required"]) for f in fields} for _ in range(count)
        ]

    def step(self) -> dict[str, str]:
        """Take a random step."""
        return self.attempt(self.rng.choices(list(STEPS), list(STEPS.values()))[0])

    def attempt(self, chosen: Callable[["History"], str]) -> dict[str, str]:
        """Take this step. Java may refuse it: then nothing has happened."""
        try:
            return {"step": chosen.__name__, "did": chosen(self)}
        except Py4JJavaError as error:
            self.table.table.refresh()
            return {"step": chosen.__name__, "refused": str(error.java_exception)}


def write_history(java: Java, seed: int, folder: Path) -> dict[str, Any]:
    """Write one table into `folder`; returns what happened and where the rows are that Java reads in it."""
    folder.mkdir(parents=True)
    rng = random.Random(seed)
    table, formats = creation.create(java, rng, folder)
    history = History(rng, java, table, formats)
    created = f"version {table.version}, {formats}, spec {table.table.spec()}"
    log = [{"step": "create", "did": created}, history.attempt(commits.append)]
    while "refused" in log[-1]:  # the smallest decimals, truncated, are too small
        log.append(history.attempt(commits.append))
    log += [history.step() for _ in range(rng.randint(4, 12))]
    table.table.refresh()
    return {
        "location": str(folder / "table"),
        "metadata": table.table.operations().current().metadataFileLocation(),
        "version": table.version,
        "log": log,
        "reads": _read_everything(history, folder),
    }


def _read_everything(history: History, folder: Path) -> list[dict[str, Any]]:
    """Every snapshot in its schema, every branch and tag in the schema that Java chooses, all times and the current table."""
    table, java = history.table, history.java.iceberg.util.SnapshotUtil
    refs, ids = table.table.refs(), [s.snapshotId() for s in table.table.snapshots()]
    wanted: list[tuple[dict[str, Any], int, Any]] = [({"snapshot": i}, i, java.schemaFor(table.table, i)) for i in ids]
    wanted += [({"ref": name}, refs[name].snapshotId(), java.schemaFor(table.table, name)) for name in sorted(refs)]
    for time in {entry.timestampMillis() for entry in table.table.history()}:
        then = java.snapshotIdAsOfTime(table.table, time)
        wanted.append(({"snapshot": then, "time": time}, then, java.schemaFor(table.table, then)))
    if "main" in refs:
        wanted.append(({}, refs["main"].snapshotId(), table.table.schema()))
    found: dict[tuple[int, int], dict[str, Any]] = {}
    reads = []
    for what, snapshot_id, schema in wanted:
        asked = snapshot_id, schema.schemaId()
        if asked not in found:
            try:
                found[asked] = dump(table, snapshot_id, schema, folder / f"read-{len(found)}.parquet")
            except Py4JJavaError as error:
                found[asked] = {"error": _causes(error)}
        reads.append(what | found[asked])
    return reads


def _causes(error: Py4JJavaError) -> str:
    """The message of a Java exception and of what caused it."""
    texts, at = list[str](), error.java_exception
    while at is not None and len(texts) < 8:
        texts.append(str(at))
        at = at.getCause()
    return "\n".join(texts)
