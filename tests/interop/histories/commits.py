"""Steps that add, delete or rewrite rows."""

import json
from typing import TYPE_CHECKING, Any

from tests.interop.histories.reading import LINEAGE, read_rows, with_metadata_columns
from tests.interop.histories.table import Fields, Row, some_positions
from tests.interop.histories.values import leaves, random_value

if TYPE_CHECKING:
    from tests.interop.histories.history import History


def append(history: "History") -> str:
    """One or two lots of rows."""
    table, branch = history.table, history.branch()
    update = table.table.newFastAppend() if history.one_in(2) else table.table.newAppend()
    files = [f for _ in range(history.rng.choice([1, 1, 2])) for f in _new_files(history)]
    for file in files:
        update.appendFile(file)
    update.toBranch(branch).commit()
    return f"{_rows(files)} to {branch}"


def delete_by_equality(history: "History") -> str:
    """One to three equality-delete files, with new rows in the same commit or not."""
    table, branch, rng = history.table, history.branch(), history.rng
    _need_version_2(history)
    head = table.head(branch)
    update, did = table.table.newRowDelta(), []
    if history.one_in(2):
        files = _new_files(history)
        for file in files:
            update.addRows(file)
        did.append(f"{_rows(files)} rows")
        if files and history.one_in(4):
            did.append(_delete_some(history, update, [(files[0], set(), [])]))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        file, text = _equality_file(history, head)
        update.addDeletes(file)
        did.append(text)
    update.toBranch(branch).commit()
    return f"{', '.join(did)} to {branch}"


def delete_by_position(history: "History") -> str:
    """Rows of one to three files, by position-delete files or, from version 3, by deletion vectors."""
    table, branch, rng = history.table, history.branch(), history.rng
    _need_version_2(history)
    head = table.head(branch)
    tasks = [task for task in table.tasks(head) if task.file().recordCount()]
    if not tasks:
        return "nothing"
    chosen = rng.sample(tasks, min(len(tasks), rng.randint(1, 3)))
    update = table.table.newRowDelta().validateFromSnapshot(head.snapshotId())
    did = _delete_some(history, update, [(task.file(), *table.deleted_positions(task)) for task in chosen])
    update.toBranch(branch).commit()
    return f"{did} to {branch}"


def compact(history: "History") -> str:
    """Files are replaced by their living rows, which keep the sequence number of the snapshot that was read."""
    table, branch, rng = history.table, history.branch(), history.rng
    head = table.head(branch)
    tasks = table.tasks(head)
    if not tasks:
        return "nothing"
    chosen = rng.sample(tasks, rng.randint(1, len(tasks)))
    lineage = LINEAGE if table.version > 2 else ()
    schema = table.table.schema()
    wanted = with_metadata_columns(history.java, schema, (*lineage, "FILE_PATH"))
    found = read_rows(table, head.snapshotId(), wanted)
    paths = {task.file().location() for task in chosen}
    kept = history.java.jvm.java.util.ArrayList([r for r in found.records if r.getField("_file") in paths])
    written = with_metadata_columns(history.java, schema, lineage)
    added = table.data_files(kept, history.format(), spec=table.table.spec(), schema=written) if len(kept) else []
    did = f"{len(chosen)} files to {len(added)}"
    meanwhile = table.version > 1 and history.one_in(2)
    if meanwhile:
        file, text = _equality_file(history, head)
        table.table.newRowDelta().addDeletes(file).toBranch(branch).commit()
        did += f", meanwhile {text}"
    update = table.table.newRewrite().validateFromSnapshot(head.snapshotId())
    if meanwhile or history.one_in(2):
        update.dataSequenceNumber(head.sequenceNumber())
    for task in chosen:
        update.deleteFile(task.file())
    for file in added:
        update.addFile(file)
    update.toBranch(branch).commit()
    return f"{did} on {branch}"


def rewrite_delete_file(history: "History") -> str:
    """An equality-delete file is replaced by one in another format with the same sequence number."""
    table = history.table
    branch = history.branch()
    head = table.head(branch)
    deletes = {d.location(): d for task in table.tasks(head) for d in task.deletes()}
    known = [path for path in table.written_deletes if path in deletes]
    if not known:
        return "nothing"
    path = history.rng.choice(known)
    old, before = deletes[path], table.written_deletes[path]
    spec = table.specs()[old.specId()]
    new = table.equality_deletes(
        before.records, before.ids, history.format(), schema=before.schema, spec=spec, partition=old.partition()
    )
    update = table.table.newRewrite().validateFromSnapshot(head.snapshotId())
    update.deleteFile(old).addFile(new, old.dataSequenceNumber()).toBranch(branch).commit()
    return f"{old.format()} to {new.format()} on {branch}"


def remove_file(history: "History") -> str:
    """A data file goes as a whole, or all of them."""
    table, branch = history.table, history.branch()
    tasks = table.tasks(table.head(branch))
    update = table.table.newDelete()
    if history.one_in(5):
        update.deleteFromRowFilter(history.java.iceberg.expressions.Expressions.alwaysTrue())
    elif tasks:
        update.deleteFile(history.rng.choice(tasks).file())
    update.toBranch(branch).commit()
    return f"on {branch}"


def overwrite(history: "History") -> str:
    """Other rows in place of a data file, or of the partitions that they are in."""
    table, branch = history.table, history.branch()
    files, tasks = _new_files(history, fewest=1), table.tasks(table.head(branch))
    if history.one_in(2) or not tasks:
        update = table.table.newReplacePartitions()
    else:
        update = table.table.newOverwrite().deleteFile(history.rng.choice(tasks).file())
    for file in files:
        update.addFile(file)
    update.toBranch(branch).commit()
    return f"{_rows(files)} to {branch}"


def _new_files(history: "History", fewest: int = 0) -> list[Any]:
    table, fields = history.table, history.table.fields()
    rows = history.rows(fields, fewest)
    history.seen = [*rows, *history.seen][:40]
    spec = table.table.spec()
    if history.one_in(5):
        spec = history.rng.choice(list(table.specs().values()))
    return table.data_files(table.records(table.table.schema(), rows), history.format(), spec=spec)


def _delete_some(history: "History", update: Any, targets: list[tuple[Any, set[int], list[Any]]]) -> str:
    """Delete a few more positions of files, given the deleted ones and the vectors that say so."""
    table = history.table
    more = [(file, some_positions(history.rng, file.recordCount())) for file, _, _ in targets if file.recordCount()]
    if table.version > 2:
        before = {file.location(): (positions, vectors) for file, positions, vectors in targets}
        merged = [(file, positions | before[file.location()][0]) for file, positions in more]
        for vector in table.vectors(merged):
            update.addDeletes(vector)
        for _, vectors in before.values():
            for vector in vectors:
                update.removeDeletes(vector)
        return f"vectors of {len(merged)} files"
    groups: dict[str, list[tuple[Any, set[int]]]] = {}
    for file, positions in more:
        groups.setdefault(f"{file.specId()} {file.partition()}", []).append((file, positions))
    for group in groups.values():
        update.addDeletes(table.position_deletes(group, history.format()))
    return f"positions of {len(more)} files"


def _equality_file(history: "History", head: Any) -> tuple[Any, str]:
    table, rng = history.table, history.rng
    schema = table.table.schema()
    older = history.one_in(8)
    if older:
        schema = rng.choice([table.table.schemas()[i] for i in table.table.schemas()])
    fields = table.fields(schema)
    usable = [(path, leaf) for path, leaf in leaves(fields) if leaf["type"] != "unknown"]
    candidates = usable[:2] if history.one_in(2) else usable
    chosen = rng.sample(candidates, min(rng.choice([1, 1, 2, 3]), len(candidates)))
    ids = tuple(leaf["id"] for _, leaf in chosen)
    kept = {i for path, _ in chosen for i in path}
    extra = history.one_in(4)
    if extra:
        kept |= {f["id"] for f in fields if history.one_in(2)}
    columns = _selected(fields, kept, set(ids))
    if history.one_in(4):
        rng.shuffle(columns)
    rows = _delete_rows(history, columns, fresh=older)
    written = history.java.iceberg.SchemaParser.fromJson(
        json.dumps({"type": "struct", "schema-id": 0, "fields": columns})
    )
    spec, partition = _scope(history, head)
    file = table.equality_deletes(
        table.records(written, rows), ids, history.format(), schema=written, spec=spec, partition=partition
    )
    types = [leaf["type"] for _, leaf in chosen]
    return file, f"delete {len(rows)} keys {ids} {types} in {file.format()} by spec {spec.specId()}"


def _selected(fields: Fields, kept: set[int], ids: set[int]) -> Fields:
    """The columns with these ids; of structs the members among the keys, or all if the struct is no key's."""
    found = []
    for field in fields:
        if field["id"] not in kept:
            continue
        kind = field["type"]
        if isinstance(kind, dict) and kind["type"] == "struct":
            members = _selected(kind["fields"], kept, ids)
            kind = {**kind, "fields": members or kind["fields"]}
        found.append({**field, "type": kind})
    return found


def _delete_rows(history: "History", columns: Fields, *, fresh: bool) -> list[Row]:
    rng, rows = history.rng, list[Row]()
    for _ in range(rng.randint(0, 5)):
        if history.seen and not fresh and rng.random() < 0.7:
            row = dict(rng.choice(history.seen))
        else:
            row = {f["id"]: random_value(rng, f["type"]) for f in columns}
        for f in columns:
            if f["required"] and row.get(f["id"]) is None:
                row[f["id"]] = random_value(rng, f["type"], required=True)
        rows.append(row)
    return rows


def _scope(history: "History", head: Any) -> tuple[Any, Any]:
    """The spec and partition of a delete: those of a living file, of no file at all, or of the whole table."""
    table, rng = history.table, history.rng
    specs = table.specs()
    everywhere = [s for s in specs.values() if not s.fields()]
    tasks = table.tasks(head)
    if everywhere and (not tasks or history.one_in(3)):
        return rng.choice(everywhere), None
    if tasks and not history.one_in(6):
        file = rng.choice(tasks).file()
        return specs[file.specId()], file.partition()
    spec, schema = table.table.spec(), table.table.schema()
    if not spec.fields():
        return spec, None
    fields = table.fields()
    row = {f["id"]: random_value(rng, f["type"], required=f["required"]) for f in fields}
    key = history.java.iceberg.PartitionKey(spec, schema)
    wrapper = history.java.iceberg.data.InternalRecordWrapper(schema.asStruct())
    key.partition(wrapper.wrap(table.records(schema, [row]).get(0)))
    return spec, key


def _need_version_2(history: "History") -> None:
    if history.table.version == 1:
        history.table.table.updateProperties().set("format-version", "2").commit()


def _rows(files: list[Any]) -> str:
    return f"{sum(f.recordCount() for f in files)} rows in {len(files)} files"
