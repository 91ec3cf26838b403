"""Rows of Spark's own reader without the dead ones: each is asked for its bit by file and position.

Bits of a few files are one array in the plan, and the size of a row's file tells where in it they begin. Bits of more
files are broadcast by chunk, and looked up by size of file and number of chunk; files of one size go by their path
instead. A row without bits fails the query rather than come back.
"""

import re
from collections.abc import Sequence
from itertools import groupby
from typing import cast
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame

from scan_core.distribute.dead_rows import CHUNK_ROWS, CHUNK_SHIFT, DeadRows
from scan_core.distribute.native_files import NativeFile
from scan_core.distribute.native_limits import NativeLimits

MOST_PLANNED_FILES = 16
"""Each is a branch that rows pass; Java compiles no method of more than 8,000 bytes of code."""

_KEY, _ROWS, _WORDS, _INDEX = "__nevermore_key", "__nevermore_rows", "__nevermore_words", "__nevermore_index"
_IS_CLEAR = "(shiftrightunsigned({words}[cast({word} as int)], cast({index} & 63 as int)) & 1) = 0"
_FAIL = "raise_error(concat('{what} ', {value}, ' has no delete bits: the file was replaced'))"
_KEEP_BY_CHUNK = (
    f"case when {_ROWS} is null or ({_INDEX} & {CHUNK_ROWS - 1}) >= {_ROWS} "
    f"then {_FAIL.format(what='a row of the file', value=_KEY)} else {_WORDS} is null or "
    f"{_IS_CLEAR.format(words=_WORDS, word=f'shiftright({_INDEX}, 6) & 1023', index=_INDEX)} end"
)
_KEEP_BY_PLACE = _IS_CLEAR.format(words=_WORDS, word=f"{_KEY} + shiftright({_INDEX}, 6)", index=_INDEX)
_NO_PLACE = _FAIL.format(what="the row of a data file at position", value="_metadata.row_index")
_WORD_LIST = pa.list_(pa.field("element", pa.int64(), nullable=False))
_BITS = pa.schema([pa.field(_ROWS, pa.int32(), nullable=False), pa.field(_WORDS, _WORD_LIST)])
_CHUNKS_SHIFT = 20
"""A file of 2**20 chunks has 68 billion rows."""


def alike_in_size(files: Sequence[NativeFile]) -> list[list[NativeFile]]:
    """The files that their size tells apart, and the others; neither is empty."""
    ordered = sorted(files, key=lambda file: file.size_bytes)
    groups = [list(group) for _, group in groupby(ordered, key=lambda file: file.size_bytes)]
    apart = [g[0] for g in groups if len(g) == 1]
    return [some for some in (apart, [file for g in groups if len(g) > 1 for file in g]) if some]


def living(rows: DataFrame, files: Sequence[NativeFile], limits: NativeLimits) -> DataFrame:
    """The rows that no bit marks.

    Args:
        rows: of Spark's own reader, dead ones too.
        files: theirs, all with dead rows; either no two of one size, or each of the size of another.
        limits: how many bits are part of the plan.
    """
    sizes = {file.size_bytes for file in files}
    if len(sizes) < len(files):
        return _living_by_path(rows, files)
    if len(files) <= MOST_PLANNED_FILES and sum(8 * _num_words(file) for file in files) <= limits.plan_bytes:
        return _living_by_place(rows, files)
    return _living_by_size(rows, files)


def _living_by_place(rows: DataFrame, files: Sequence[NativeFile]) -> DataFrame:
    """In SQL's text, here and below: classic sessions ask Java once per Column they make."""
    parts: list[npt.NDArray[np.int64]] = []
    branches = []
    first = 0
    for file in files:
        dead = cast(DeadRows, file.dead)
        is_of_file = f"_metadata.file_size = {file.size_bytes}L and _metadata.row_index < {dead.num_rows}L"
        branches.append(f"when {is_of_file} then {first}L")
        parts.append(dead.all_words)
        first += len(parts[-1])
    bits = pa.table({_WORDS: pa.array([np.concatenate(parts)], _WORD_LIST)})
    place = f"case {' '.join(branches)} else {_NO_PLACE} end as {_KEY}"
    placed = rows.selectExpr("*", place, f"_metadata.row_index as {_INDEX}")
    asked = placed.withColumn(_WORDS, rows.sparkSession.createDataFrame(bits).scalar())
    return asked.where(_KEEP_BY_PLACE).drop(_KEY, _INDEX, _WORDS)


def _living_by_size(rows: DataFrame, files: Sequence[NativeFile]) -> DataFrame:
    key = f"shiftleft(_metadata.file_size, {_CHUNKS_SHIFT}) | shiftright(_metadata.row_index, {CHUNK_SHIFT})"
    keys = [(file.size_bytes << _CHUNKS_SHIFT) | np.arange(_num_chunks(file), dtype=np.int64) for file in files]
    return _living_by_chunk(rows, key, pa.array(np.concatenate(keys), pa.int64()), files)


def _living_by_path(rows: DataFrame, files: Sequence[NativeFile]) -> DataFrame:
    """Spark spells local paths in two ways, so that both are known; whatever else it did would fail the query."""
    spelled = {_plain(unquote(path)): path for path in rows.inputFiles()}
    twice = [(file, spelling) for file in files for spelling in _spellings(spelled[_plain(file.path)])]
    keys = [f"{spelling}#{chunk}" for file, spelling in twice for chunk in range(_num_chunks(file))]
    key = f"concat_ws('#', _metadata.file_path, shiftright(_metadata.row_index, {CHUNK_SHIFT}))"
    return _living_by_chunk(rows, key, pa.array(keys), [file for file, _ in twice])


def _living_by_chunk(rows: DataFrame, key: str, keys: pa.Array, files: Sequence[NativeFile]) -> DataFrame:
    bits = pa.concat_tables([_bits(file) for file in files]).add_column(0, pa.field(_KEY, keys.type), keys)
    known = rows.sparkSession.createDataFrame(bits).hint("broadcast")
    placed = rows.selectExpr("*", f"{key} as {_KEY}", f"_metadata.row_index as {_INDEX}")
    return placed.join(known, _KEY, "left").where(_KEEP_BY_CHUNK).drop(_KEY, _INDEX, _ROWS, _WORDS)


def _bits(file: NativeFile) -> pa.Table:
    """A row per chunk of the file: how many rows it has, and the words if one of them is dead."""
    dead = cast(DeadRows, file.dead)
    num_chunks = _num_chunks(file)
    rows = np.full(num_chunks, CHUNK_ROWS, dtype=np.int32)
    if num_chunks:
        rows[-1] = dead.num_rows - (num_chunks - 1) * CHUNK_ROWS
    is_whole = np.ones(num_chunks, dtype=np.bool_)
    is_whole[dead.chunks] = False
    offsets = np.concatenate([[0], np.cumsum(np.where(is_whole, 0, dead.words.shape[1]))]).astype(np.int32)
    words = pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(dead.words.reshape(-1)), type=_WORD_LIST, mask=pa.array(is_whole)
    )
    return pa.table([pa.array(rows), words], schema=_BITS)


def _num_chunks(file: NativeFile) -> int:
    return 0 if file.dead is None else -(-file.dead.num_rows // CHUNK_ROWS)


def _num_words(file: NativeFile) -> int:
    return 0 if file.dead is None else -(-file.dead.num_rows // 64)


def _spellings(path: str) -> tuple[str, ...]:
    """As Spark lists a file, and as it says of a row where it is from."""
    local = re.match(r"file:/+", path)
    return (path,) if local is None else (f"file:///{path[local.end() :]}", f"file:/{path[local.end() :]}")


def _plain(path: str) -> str:
    """A path without scheme and authority's slashes, as both sides may spell it."""
    return re.sub(r"/+", "/", re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*:", "", path))
