"""Arrow and NumPy exchange values by their buffers, whatever the offset."""

import subprocess
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nevermore.scan_core.rows.buffers import boolean_array, index_array, numbers, scalar, true_flags, validity


@pytest.mark.parametrize("offset", [0, 3, 8, 17])
def test_values_and_validity_of_a_slice_are_seen(offset: int) -> None:
    values = [None if i % 5 == 0 else i for i in range(40)]
    array = pa.array(values, pa.int32()).slice(offset, 21)
    valid = validity(array)
    assert valid is not None
    assert valid.tolist() == array.is_valid().to_pylist()
    assert numbers(array)[valid].tolist() == array.drop_null().to_pylist()
    assert validity(array.drop_null()) is None
    assert validity(pa.nulls(3)).tolist() == [False] * 3  # type: ignore[union-attr]  never None


@pytest.mark.parametrize("count", [0, 1, 9, 64])
def test_arrays_over_flags_and_places_hold_them(count: int) -> None:
    flags = np.arange(count) % 3 == 0
    assert boolean_array(flags).to_pylist() == flags.tolist()
    assert index_array(np.flatnonzero(flags)).to_pylist() == np.flatnonzero(flags).tolist()
    assert numbers(pa.array([], pa.int8())).dtype == np.int8


@pytest.mark.parametrize("offset", [0, 3, 8, 13])
def test_null_is_not_true(offset: int) -> None:
    array = pa.array([True, None, False] * 9).slice(offset)
    assert true_flags(array).tolist() == [value is True for value in array.to_pylist()]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (-5, pa.int32()),
        (2**62, pa.int64()),
        (1.5, pa.float64()),
        (0.1, pa.float32()),
        (18_262, pa.date32()),
        (7, pa.timestamp("us", tz="UTC")),
        (7, pa.time64("us")),
        ("grün", pa.string()),
        (True, pa.bool_()),
        (b"x", pa.binary()),
        (Decimal("1.25"), pa.decimal128(9, 2)),
        (None, pa.int64()),
    ],
)
def test_constants_are_those_of_arrow(value: Any, kind: pa.DataType) -> None:
    assert scalar(value, kind) == pa.scalar(value, kind)
    assert scalar(value, kind).type == kind


def test_constants_that_do_not_fit_are_refused_as_arrow_does() -> None:
    with pytest.raises(pa.ArrowInvalid):
        scalar(2**31, pa.int32())


def test_pandas_stays_out() -> None:
    code = (
        "import sys, numpy as np, pyarrow as pa;"
        "from nevermore.scan_core.rows.buffers import boolean_array, numbers, scalar, validity;"
        "scalar(1, pa.int64()), scalar('a', pa.string()), scalar(1.5, pa.float64());"
        "a = boolean_array(np.array([True])); b = pa.Array.from_buffers(pa.int8(), 1, [a.buffers()[1], a.buffers()[1]]);"
        "numbers(b), validity(b); sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
