"""Files that grow, and end in the middle of a line: what is read now, and what waits."""

import pytest

from tests.pipelines.sources.folder_reader import PAIRS, Reader, lines, numbers


def test_late_file_is_read(reader: Reader) -> None:
    reader.write("b", lines(1))
    reader.run()
    reader.write("a", lines(2))
    assert numbers(reader.run()) == [2]
    assert reader.run() == []


def test_growing_file_is_read_from_where_it_was_left(reader: Reader) -> None:
    reader.write("a", lines(1))
    reader.run()
    reader.write("a", lines(2), "a")
    assert reader.run() == [("a", 2, '{"n":2}')]
    reader.write("a", '{"n":3}', "a")
    assert reader.run() == [("a", 3, '{"n":3}')]
    reader.write("a", "\n" + lines(4), "a")
    assert reader.run() == [("a", 4, '{"n":4}')]


def test_unfinished_last_line_is_reported_once_and_read_when_it_is_whole(reader: Reader) -> None:
    reader.write("a", lines(1) + '{"n":')
    assert [offset for _, offset, _ in reader.run(report_incomplete=True)] == [1, 2]
    assert reader.run() == []
    reader.write("a", "2}\n", "a")
    assert reader.run() == [("a", 2, '{"n":2}')]


def test_unfinished_last_line_waits_where_it_is_not_to_be_reported(reader: Reader) -> None:
    reader.write("a", lines(1) + '{"n":')
    told: list[str] = []
    assert numbers(reader.run(on_skipped=lambda reason, _: told.append(reason))) == [1]
    assert told == ["unfinished line"]
    assert reader.run() == []
    reader.write("a", "2}\n", "a")
    assert numbers(reader.run()) == [2]


def test_unfinished_last_line_is_given_up_when_a_newer_file_came_and_it_did_not_change(reader: Reader) -> None:
    reader.write("a", lines(1) + '{"n":')
    reader.run()
    reader.write("b", lines(2))
    assert reader.run() == [("a", 2, '{"n":'), ("b", 1, '{"n":2}')]
    assert reader.run() == []
    reader.write("a", "3}\n", "a")
    assert reader.run() == [("a", 2, '{"n":3}')]


def test_broken_last_line_is_read_when_its_newline_comes(reader: Reader) -> None:
    reader.write("a", lines(1) + "{bad")
    reader.run()
    reader.write("a", "\n", "a")
    assert reader.run() == [("a", 2, "{bad")]


@pytest.mark.parametrize("cut", range(1, 40, 4))
def test_file_whose_first_line_is_cut_anywhere_is_read_whole_later(reader: Reader, cut: int) -> None:
    text = '{"op":"c", "after": {"id": 1, "n": [1, 2]}}\n{"op":"c","after":{"id":2}}\n'
    reader.write("0", lines(0))
    reader.write("a", text[:cut])
    assert len(reader.run()) == 1
    reader.write("a", text)
    assert [(offset, document) for _, offset, document in reader.run()] == list(enumerate(text.splitlines(), 1))


@pytest.mark.parametrize("first", ['{"op":"c","after":{', "{bad", '{"op":"c","after":', '{"op":"c","s":"abc', "[]"])
def test_broken_first_line_leaves_the_others_alone(reader: Reader, first: str) -> None:
    rest = ['{"op":"c","after":{"id":1}}', '{"op":"c","after":{"id":2}}']
    reader.write("a", "\n".join([first, *rest]) + "\n")
    assert [document for _, _, document in reader.run()] == [first, *rest]


def test_broken_document_among_pretty_ones_takes_no_other_with_it(reader: Reader) -> None:
    pretty = ['{\n  "n": 1\n}', '{\n  "n": oops\n}', '{\n  "n": 3\n}']
    reader.write("a", "\n".join(pretty))
    assert [(offset, document) for _, offset, document in reader.run(layout="documents")] == list(enumerate(pretty, 1))


def test_growing_array_is_read_from_where_it_was_left(reader: Reader) -> None:
    reader.write("a", '[{"n":1},{"n":2}]')
    assert numbers(reader.run()) == [1, 2]
    reader.write("a", '[{"n":1},{"n":2},{"n":3}]')
    assert numbers(reader.run()) == [3]


def test_renamed_file_that_grew_is_read_from_where_it_was_left(reader: Reader) -> None:
    reader.write("a.part", lines(1, 2))
    reader.run()
    (reader.folder / "a.part").rename(reader.folder / "a.jsonl")
    reader.write("a.jsonl", lines(3), "a")
    assert reader.run() == [("a.jsonl", 3, '{"n":3}')]


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_file_that_was_cut_keeps_its_place_while_one_before_it_is_applied(reader: Reader, suffix: str) -> None:
    def rows(*words: str) -> str:
        return "".join(f"{word},1\n" if suffix == "csv" else f'{{"op":"{word}"}}\n' for word in words)

    header = "op,id\n" if suffix == "csv" else ""
    reader.write(f"b.{suffix}", header + rows(*9 * ["+I"], "-U"))
    assert len(reader.run(batch_rows=4, complete=PAIRS)) == 9
    reader.write(f"b.{suffix}", rows("+U"), "a")
    reader.write(f"a.{suffix}", header + rows(*3 * ["+I"]))
    killed = reader.run(batch_rows=4, complete=PAIRS, stop_after=1)
    seen = [(name, offset) for name, offset, _ in killed + reader.run(batch_rows=4, complete=PAIRS)]
    assert seen == [*((f"a.{suffix}", n) for n in (1, 2, 3)), *((f"b.{suffix}", n) for n in (10, 11))]


def test_file_that_is_renamed_and_grows_more_than_once_is_read_from_where_it_was_left(reader: Reader) -> None:
    long = "".join(f'{{"n":{n},"text":"{"x" * 2000}"}}\n' for n in range(3)).splitlines(keepends=True)
    reader.write("a", long[0])
    assert len(reader.run()) == 1
    for name, other, line in (("a", "b", long[1]), ("b", "c", long[2])):
        (reader.folder / name).rename(reader.folder / other)
        reader.write(other, line, "a")
        assert [offset for _, offset, _ in reader.run()] == [long.index(line) + 1]
    assert reader.run() == []


def test_last_row_of_csv_without_newline_waits_until_it_is_whole(reader: Reader) -> None:
    reader.write("a.csv", "id,n\n1,1\n2,12")
    told: list[str] = []
    assert reader.run(on_skipped=lambda reason, _: told.append(reason)) == [("a.csv", 1, {"id": "1", "n": "1"})]
    assert told == ["unfinished line"]
    reader.write("a.csv", "34\n", "a")
    assert reader.run() == [("a.csv", 2, {"id": "2", "n": "1234"})]


def test_last_row_of_csv_without_newline_is_read_when_a_newer_file_came(reader: Reader) -> None:
    reader.write("a.csv", "id\n1\n2")
    reader.run()
    reader.write("b.csv", "id\n3\n")
    assert [row["id"] for _, _, row in reader.run()] == ["2", "3"]
    assert reader.run() == []
