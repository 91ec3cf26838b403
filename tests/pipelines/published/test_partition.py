from decimal import Decimal

import pytest

from pipelines.errors import ConfigError
from pipelines.published_partition import PublishedPartition
from scan_core.schema import PrimitiveType


@pytest.mark.parametrize("key", ["9999-12-31", "0001-01-01"])
@pytest.mark.parametrize("unit", ["day", "day(day)", "month(day)", "year(day)", "hour(at)"])
def test_first_and_last_partition_there_is_are_like_any_other(key: str, unit: str) -> None:
    by = PublishedPartition.parse(unit)
    kind = PrimitiveType("timestamp" if by.unit == "hour" else "date")
    wanted = {"year": key[:4], "month": key[:7], "day": key, "hour": f"{key}T23"}[by.unit]
    value = by.physical(wanted, kind)
    assert by.key_of(value, kind) == wanted
    assert by.keys(f"{wanted}..{wanted}") == [wanted]
    assert [by.key_of(by.physical(by.keys(wanted)[0], kind), kind)] == [wanted]
    assert by.periods([value])[0].start == by.period(wanted).start
    assert ("partition_end" in by.parameters(wanted)) is (key < "9999")


def test_partition_without_a_name_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="years 1 to 9999"):
        PublishedPartition.parse("day").key_of(10_000_000, PrimitiveType("date"))


def test_decimal_has_one_key_as_manifests_and_as_scans_tell_it() -> None:
    by, kind = PublishedPartition.parse("value(price)"), PrimitiveType("decimal", (10, 2))
    assert by.physical("1.50", kind) == 150
    assert by.key_of(150, kind) == by.key_of(Decimal("1.50"), kind) == "1.50"
