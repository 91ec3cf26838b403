"""Arrow and NumPy exchange values by their buffers, whatever the offset."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from scan_core.rows.buffers import boolean_array, index_array, numbers, validity


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


def test_pandas_stays_out() -> None:
    code = (
        "import sys, numpy as np, pyarrow as pa; from scan_core.rows.buffers import boolean_array, numbers, validity;"
        "a = boolean_array(np.array([True])); b = pa.Array.from_buffers(pa.int8(), 1, [a.buffers()[1], a.buffers()[1]]);"
        "numbers(b), validity(b); sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
