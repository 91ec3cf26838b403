"""Text of dates and times in the forms of the programs that docs/feeds.md lists."""

from datetime import UTC, date, datetime, time

import pyarrow as pa
import pytest

from nevermore.pipelines.decode import casting
from nevermore.pipelines.decode.batches import shown

FORMS = [
    "2024-05-10T23:00:00.276489Z",
    "2024-05-10T23:00:00.276489",
    "2024-05-10 23:00:00.276489",
    "2024-05-10 23:00:00.276489000",
    "2024-05-11 02:00:00.276489+03",
    "2024-05-11 04:30:00.276489+05:30",
    "2024-05-11 03:00:02.276489+04:00:02",
    "2024-05-11 02:00:00.2764890 +03:00",
    "2024-05-11 02:00:00.276489 +0300",
    "2024-05-11 02:00:00.276489 +03",
    "2024-05-11 02:00:00.276489 +0300 MSK",
    "2024-05-10 23:00:00.276489 UTC",
    "2024-05-11T02:00:00.276489+0300",
    "2024-05-11T02:00:00.276489+03:00[Europe/Moscow]",
    "2024-05-10t23:00:00.276489z",
    "2024-05-10T23:00:00,276489Z",
    "2024-05-10-23.00.00.276489",
    "2024-05-11T02:00+03:00",
    "2024-05-10T23:00Z",
    "2024-05-10 23:00",
    "Fri May 10 23:00:00 UTC 2024",
]
WHOLE = datetime(2024, 5, 10, 23, 0, 0, 276_489, UTC)


@pytest.mark.each(4)
@pytest.mark.parametrize("text", FORMS)
@pytest.mark.parametrize("zone", ["UTC", None])
@pytest.mark.parametrize("others", [0, 3], ids=["alone", "among others"])
def test_every_form_is_the_same_moment(text: str, zone: str | None, others: int) -> None:
    words = pa.array([*(["2024-05-10T23:00:00.276489Z"] * others), text, None, f" {text} ", "no time"])
    values, bad = casting.from_text(words, pa.timestamp("us", zone))
    wanted = WHOLE if "276489" in text else WHOLE.replace(microsecond=0)
    wanted = wanted if zone else wanted.replace(tzinfo=None)
    assert values.to_pylist()[others:] == [wanted, None, wanted, None]
    assert bad.tolist()[others:] == [False, False, False, True]


@pytest.mark.parametrize("text", [form for form in FORMS if form[:4] == "2024"])
def test_date_of_every_form(text: str) -> None:
    values, bad = casting.from_text(pa.array([text]), pa.date32())
    assert (values.to_pylist(), bad.any()) == ([date.fromisoformat(text[:10])], False)


@pytest.mark.parametrize(
    "text",
    ["2024-05-10 23:00:00 IST", "10/05/2024 23:00:00", "2024-05-10 11:00:00 PM", "2024-05-10T23:00:00[Europe/Moscow]",
     "2024-05-10 23:00:00 +3", "2024-05-10 23:00:00 +03:00 +03:00", "2024-05-10 +03:00", "Fri May 10 23:00:00 MSK 2024"],
)  # fmt: skip
def test_ambiguous_text_is_refused(text: str) -> None:
    assert casting.from_text(pa.array([text]), pa.timestamp("us", "UTC"))[1].tolist() == [True]


@pytest.mark.parametrize("zone", ["UTC", None])
@pytest.mark.parametrize("others", [[], ["2024-05-11T02:00+03:00"]], ids=["alone", "among others"])
def test_a_day_alone_is_its_midnight(zone: str | None, others: list[str]) -> None:
    values, bad = casting.from_text(pa.array([*others, "2024-05-10", "2024-13-10"]), pa.timestamp("us", zone))
    wanted = datetime(2024, 5, 10, tzinfo=UTC)
    assert values.to_pylist()[-2:] == [wanted if zone else wanted.replace(tzinfo=None), None]
    assert bad.tolist()[-2:] == [False, True]


@pytest.mark.parametrize("text", ["02:00:00.276489", "02:00:00.2764890", "02:00:00,276489", "02:00:00.276489 +00:00"])
def test_times_of_day(text: str) -> None:
    assert casting.from_text(pa.array([text]), pa.time64("us"))[0].to_pylist() == [time(2, 0, 0, 276_489)]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (pa.array([None, 2_932_897], pa.date32()), "10000-01-01"),
        *(
            (pa.array([None, 2**62], pa.timestamp("us", zone)), "148108-07-06T14:00:27.387904")
            for zone in (None, "UTC", "Asia/Kolkata")
        ),
        (pa.array([None, 5], pa.timestamp("us", "UTC")), "1970-01-01 00:00:00.000005Z"),
        (pa.array([None, 1001], pa.time64("ns")), "00:00:00.000001001"),
    ],
)
def test_messages_show_dates_and_times_of_every_year_and_unit(values: pa.Array, text: str) -> None:
    assert shown(values).to_pylist() == ["", text]
