"""Aggregates under a mask, and close integers marked by compiled loops as NumPy marks them."""

import numpy as np
import pyarrow as pa
import pytest

from nevermore.scan_core.keys.equality_index import build_index
from nevermore.scan_core.keys.lookup import DeleteKeys
from nevermore.scan_core.native import compiled
from nevermore.scan_core.read.output import Function, _one
from tests.support.kernels_used import kernels_used

SIZES = [1, 63, 64, 65, 32_768, 100_001]


NUMBERS = [pa.int32(), pa.int64(), pa.float32(), pa.float64()]


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("kind", "function"),
    [(kind, "sum") for kind in NUMBERS]
    + [(kind, extreme) for kind in (*NUMBERS, pa.date32(), pa.int16()) for extreme in ("min", "max")],
)
def test_masked_aggregates_equal_those_of_the_chosen_values(kind: pa.DataType, function: Function) -> None:
    random = np.random.default_rng(3)
    for size in SIZES:
        numbers = random.normal(size=size) * 10.0 ** random.integers(0, 15, size)
        if pa.types.is_floating(kind):
            array = pa.array(numbers, pa.float64()).cast(kind)
        elif kind == pa.int64():
            array = pa.array(random.integers(-(2**63), 2**63 - 1, size), kind)
        else:
            array = pa.array(random.integers(-(2**15), 2**15 - 1, size).astype(np.int32)).cast(kind)
        mask = random.random(size) < 0.7
        mask[0] = True
        found, chosen = _one(function, array, mask), array.filter(pa.array(mask)).to_pylist()
        if function == "sum":
            exact = sum(chosen)
            assert found == pytest.approx(exact, rel=1e-9) if pa.types.is_floating(kind) else found == exact
        else:
            assert isinstance(found, pa.Scalar)
            assert found.type == kind
            assert found.as_py() == (min if function == "min" else max)(chosen)


def test_close_integers_are_marked_as_numpy_marks_them_beyond_the_table_as_well() -> None:
    keys = pa.array([5, 7, None, 1_000])
    index = build_index([DeleteKeys(1, (keys,)), DeleteKeys(4, (pa.array([7]),))], [pa.int64()], 1 << 30)
    probes = [-(2**63), -1, 0, 5, 6, 7, None, 999, 1_000, 1_001, 2**63 - 1]
    for threshold in (0, 1):
        with kernels_used(are_on=False):
            plain = index.deleted([pa.array(probes, pa.int64())], threshold)
        compiled.load()
        native = index.deleted([pa.array(probes, pa.int64())], threshold)
        assert plain.tolist() == native.tolist() == [p in ({7} if threshold else {5, 7, None, 1_000}) for p in probes]
