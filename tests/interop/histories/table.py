"""One table through Iceberg Java's API: its schema as JSON, and files of every kind that its generic writers make."""

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.interop.histories.gateway import Java
from tests.interop.histories.values import arrow_table

Fields = list[dict[str, Any]]
Row = Mapping[int, Any]
Targets = Sequence[tuple[Any, set[int]]]
"""Data files and positions in them."""


@dataclass(frozen=True, slots=True)
class WrittenDelete:
    """An equality-delete file together with what is in it, so that it can be written once more."""

    file: Any
    ids: tuple[int, ...]
    schema: Any
    records: Any


class JavaTable:
    """A table and its files. Java objects are opaque here; rows go in through a Parquet file that Java reads."""

    def __init__(self, java: Java, table: Any, scratch: Path) -> None:
        self.java = java
        self.table = table
        self.scratch = scratch
        self.positions: dict[tuple[str, int | None], dict[str, set[int]]] = {}
        self.written_deletes: dict[str, WrittenDelete] = {}
        self._order: dict[str, int] = {}
        self._tasks = 0

    # schema and specs

    def fields(self, schema: Any = None) -> Fields:
        """The columns of a schema, the current one by default, as in metadata.json."""
        text = self.java.iceberg.SchemaParser.toJson(schema or self.table.schema())
        # as the specification writes it in most places, without blanks
        fields: Fields = json.loads(re.sub(r"decimal\((\d+), (\d+)\)", r"decimal(\1,\2)", text))["fields"]
        return fields

    @property
    def version(self) -> int:
        return int(self.table.operations().current().formatVersion())

    def specs(self) -> dict[int, Any]:
        return {int(i): self.table.specs()[i] for i in self.table.specs()}

    # files

    def records(self, schema: Any, rows: Sequence[Row]) -> Any:
        """Java records of a schema."""
        pq.write_table(arrow_table(self.fields(schema), rows), self.scratch, version="2.6")
        iceberg = self.java.iceberg
        source = iceberg.Files.localInput(str(self.scratch))
        reader = iceberg.formats.FormatModelRegistry.readBuilder(
            iceberg.FileFormat.PARQUET, self.java.record, source
        ).project(schema)
        return self.java.rows(reader.build())

    def data_files(self, records: Any, file_format: str, *, spec: Any, schema: Any = None) -> list[Any]:
        """Data files, one for each partition that the records fall into."""
        schema = schema or self.table.schema()
        file_format = file_format if len(records) else _instead_of_nothing(file_format)
        writers = self._writers().dataFileFormat(self._format(file_format)).dataSchema(schema).build()
        found = []
        for partition, part in self._by_partition(records, spec, schema):
            writer = writers.newDataWriter(self._output(file_format, spec, partition), spec, partition)
            self.java.write_all(writer, part)
            writer.close()
            found.append(self._known(writer.toDataFile()))
        return found

    def equality_deletes(
        self, records: Any, ids: tuple[int, ...], file_format: str, *, schema: Any, spec: Any, partition: Any
    ) -> Any:
        """An equality-delete file with records of `schema`, which may hold more than the keys."""
        file_format = file_format if len(records) else _instead_of_nothing(file_format)
        writers = (
            self._writers()
            .deleteFileFormat(self._format(file_format))
            .equalityFieldIds(self.java.ints(ids))
            .equalityDeleteRowSchema(schema)
            .build()
        )
        writer = writers.newEqualityDeleteWriter(self._output(file_format, spec, partition), spec, partition)
        self.java.write_all(writer, records)
        writer.close()
        found = self._known(writer.toDeleteFile())
        self.written_deletes[found.location()] = WrittenDelete(found, ids, schema, records)
        return found

    def position_deletes(self, targets: Targets, file_format: str) -> Any:
        """A position-delete file for data files of one partition."""
        some = targets[0][0]
        spec, partition = self.specs()[some.specId()], some.partition()
        writers = self._writers().deleteFileFormat(self._format(file_format)).build()
        writer = writers.newPositionDeleteWriter(self._output(file_format, spec, partition), spec, partition)
        by_path = {file.location(): positions for file, positions in targets}
        for path in sorted(by_path):
            for position in sorted(by_path[path]):
                writer.write(self.java.iceberg.deletes.PositionDelete.create().set(path, position))
        writer.close()
        found = self._known(writer.toDeleteFile())
        self.positions[found.location(), None] = by_path
        return found

    def vectors(self, targets: Targets) -> list[Any]:
        """Deletion vectors, all in one Puffin file."""
        specs = self.specs()
        no_previous = self.java.jvm.com.google.common.base.Functions.forMap(self.java.jvm.java.util.HashMap(), None)
        output = self._outputs("PUFFIN", self.table.spec())
        writer = self.java.iceberg.deletes.BaseDVFileWriter(output, no_previous)
        for file, positions in targets:
            for position in sorted(positions):
                writer.delete(file.location(), position, specs[file.specId()], file.partition())
        writer.close()
        vectors = list(writer.result().deleteFiles())
        by_path = {file.location(): positions for file, positions in targets}
        for vector in vectors:
            path = vector.referencedDataFile()
            self.positions[vector.location(), vector.contentOffset()] = {path: by_path[path]}
            self._known(vector)
        return vectors

    # what is there

    def head(self, ref: str) -> Any:
        """The newest snapshot of a branch, None if there is none yet."""
        return self.table.currentSnapshot() if ref == "main" else self.table.snapshot(ref)

    def tasks(self, snapshot: Any) -> list[Any]:
        """The FileScanTasks of a snapshot, in the order in which the files were written."""
        if snapshot is None:
            return []
        planned = self.java.rows(self.table.newScan().useSnapshot(snapshot.snapshotId()).planFiles())
        return sorted(planned, key=lambda task: self._order.get(task.file().location(), -1))

    def deleted_positions(self, task: Any) -> tuple[set[int], list[Any]]:
        """Positions of a data file that are deleted already, and the deletion vectors that say so."""
        path, found, vectors = task.file().location(), set(), []
        for delete in task.deletes():
            by_path = self.positions.get((delete.location(), delete.contentOffset()), {})
            found |= by_path.get(path, set())
            if delete.contentOffset() is not None:
                vectors.append(delete)
        return found, vectors

    def _by_partition(self, records: Any, spec: Any, schema: Any) -> Iterable[tuple[Any, Any]]:
        if spec.isUnpartitioned() and not spec.fields():
            return [(None, records)]
        iceberg = self.java.iceberg
        key = iceberg.PartitionKey(spec, schema)
        wrapper = iceberg.data.InternalRecordWrapper(schema.asStruct())
        groups = self.java.jvm.java.util.LinkedHashMap()
        for record in records:
            key.partition(wrapper.wrap(record))
            part = groups.get(key)
            if part is None:
                part = self.java.jvm.java.util.ArrayList()
                groups.put(key.copy(), part)
            part.add(record)
        return [(entry.getKey(), entry.getValue()) for entry in groups.entrySet()]

    def _known(self, file: Any) -> Any:
        self._order[file.location()] = len(self._order)
        return file

    def _format(self, name: str) -> Any:
        return getattr(self.java.iceberg.FileFormat, name)

    def _writers(self) -> Any:
        return self.java.iceberg.data.GenericFileWriterFactory.Builder(self.table)

    def _outputs(self, file_format: str, spec: Any) -> Any:
        self._tasks += 1
        factory = self.java.iceberg.io.OutputFileFactory.builderFor(self.table, spec.specId(), self._tasks)
        return factory.format(self._format(file_format)).build()

    def _output(self, file_format: str, spec: Any, partition: Any) -> Any:
        outputs = self._outputs(file_format, spec)
        return outputs.newOutputFile() if partition is None else outputs.newOutputFile(spec, partition)


def some_positions(rng: random.Random, count: int) -> set[int]:
    """A few positions of a file with `count` rows."""
    return set(rng.sample(range(count), rng.randint(1, min(count, 4))))


def _instead_of_nothing(file_format: str) -> str:
    """A Parquet file without rows is committed by Java but never created."""
    return "AVRO" if file_format == "PARQUET" else file_format
