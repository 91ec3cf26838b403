"""Names of every kind as table, key, partition and payload: each works with the right rows, or is refused with its reason."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nevermore.pipelines.cli.main import main
from tests.pipelines.project import Project, event, the

WORKING = (
    *(
        ".a",
        "..",
        ".",
        "a.b",
        "a[0]",
        "[x]",
        'q"q',
        "b`t",
        "s;c",
        "a'b",
        "'",
        "$1",
        "%s",
        "{a}",
        "*",
        "a/b",
        "a\\b",
        "a,b",
    ),
    *("n\nl", "a b", " a", "é", "e\u0301", "\u200b", "\ufeffa", "\U0001f600", "x" * 300, "select", "NULL", "partition"),
    *("ordinal", "op", "key", "before", "after", "unchanged", "_deleted", "_change_type", "\x01"),
)
REFUSED = {
    **dict.fromkeys(
        ("_file", "_pos", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"), "Iceberg has"
    ),
    **dict.fromkeys(("", "n\0l"), "empty or holds a NUL"),
}
ROLES = ("payload", "key", "partition", "sort", "full", "member")


class Named:
    """A project with one column of a name, in a role."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str], name: str, role: str) -> None:
        self.folder, self.capfd, self.name, self.role = folder, capfd, name, role
        (folder / "landing").mkdir()
        options: dict[str, Any] = (
            {"identity": "full"} if role == "full" else {"key": [name if role == "key" else "id0"]}
        )
        options |= {"partition_by": [name]} if role == "partition" else {}
        options |= {"sort_by": [name]} if role == "sort" else {}
        source = {"type": "files", "path": "landing/*.jsonl", "format": "debezium-json"}
        document = {"tables": {"shop.products": {"source": source, **options}}}
        (folder / "nevermore.yaml").write_text(yaml.safe_dump(document))

    def row(self, number: int, text: str | None) -> dict[str, Any]:
        if self.role == "key":
            return {self.name: number, "v0": text}
        return {"id0": number, self.name: {self.name: text} if self.role == "member" else text}

    def land(self, name: str, *events: str) -> None:
        (self.folder / "landing" / name).write_text("".join(f"{line}\n" for line in events))

    def run(self, command: str, *words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([command, *words, "--config", str(self.folder / "nevermore.yaml")])
        found = self.capfd.readouterr()
        return int(ended.value.code or 0), found.out, found.err

    def rows(self, command: str, *words: str) -> list[dict[str, Any]]:
        code, output, errors = self.run(command, "shop.products", *words, "--format", "jsonl")
        assert code == 0, errors
        return sorted((json.loads(line) for line in output.splitlines()), key=str)


def works(named: Named) -> None:
    name, quoted = named.name, '"' + named.name.replace('"', '""') + '"'
    old, kept, new = named.row(2, "b"), named.row(3, None), named.row(2, "z")
    named.land("1.jsonl", *(event("c", row) for row in (named.row(1, "a"), old, kept)))
    assert named.run("ingest")[0] == 0
    named.land("2.jsonl", event("d", named.row(1, "a")), event("u", new, before=old))
    code, output, errors = named.run("ingest")
    assert code == 0, (output, errors)
    assert named.rows("scan") == sorted([new, kept], key=str)
    columns = [row[name] for row in named.rows("scan", "--columns", quoted)]
    assert sorted(columns, key=str) == sorted([new[name], kept[name]], key=str)
    if named.role != "member":
        backquoted = "`" + name.replace("`", "``") + "`"
        value = "2" if named.role == "key" else "'z'"
        assert named.rows("scan", "--where", f"{backquoted} = {value}") == [new]
    assert len(named.rows("changes")) >= 2
    for command in ("check", "explain"):
        code, output, errors = named.run(command, "shop.products")
        assert code == 0, (command, output, errors)
    if named.role != "full":
        part = f"{name}=1" if named.role == "key" else "id0=1"
        asked = '"' + part.replace('"', '""') + '"'
        code, output, errors = named.run("why", "shop.products", "--key", asked, "--json")
        assert (code, json.loads(output)["verdict"]) == (0, "gone"), errors
    code, output, errors = named.run("changes", "shop.products", "--count", "--json")
    assert (code, json.loads(output)) == (0, {"deletes": 0, "inserts": 2}), errors
    if named.role != "full":
        assert named.run("replay", "shop.products", "--all")[0] == 0
    assert named.run("resync", "shop.products")[0] == 0
    assert named.rows("scan") == sorted([new, kept], key=str)


def refused(named: Named, reason: str) -> None:
    named.land("1.jsonl", event("c", named.row(1, "a")))
    code, output, errors = named.run("ingest")
    assert code in {1, 2}
    told = (output + errors).strip()
    assert reason in told or "is not a partition field" in told
    assert "\n" not in told
    assert "Traceback" not in told


@pytest.mark.each(2)
@pytest.mark.parametrize(("name", "role"), [(".a", "key"), ("..", "full")])
def test_names_that_look_like_paths_work(
    name: str, role: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    works(Named(tmp_path, capfd, name, role))


@pytest.mark.parametrize(("name", "reason"), [("_spec_id", REFUSED["_spec_id"]), ("n\0l", REFUSED["n\0l"])])
def test_names_that_no_table_can_have_are_refused(
    name: str, reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(Named(tmp_path, capfd, name, "payload"), reason)


@pytest.mark.each(10)
@pytest.mark.parametrize("name", ["é", "e\u0301", "\U0001f600", "a/b", 'q"q', "n\nl"])
@pytest.mark.parametrize("spelling", ["plain", "ascii", "large", "slashes"])
def test_members_of_structs_are_found_however_their_names_are_spelled(spelling: str, name: str, tmp_path: Path) -> None:
    document = event("c", {"id": 1, "s": {name: "z"}, "l": [{name: 1}], name: 2})
    spelled = {
        "plain": json.dumps(json.loads(document), ensure_ascii=False),
        "ascii": document,
        "large": re.sub(r"\\u[0-9a-f]{4}", lambda found: "\\u" + found[0][2:].upper(), document),
        "slashes": document.replace("/", "\\/"),
    }
    project = Project(tmp_path)
    project.land("1.jsonl", [spelled[spelling]])
    assert the(project.run()).error is None
    assert project.rows() == [json.loads(document)["after"]]


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", WORKING)
def test_every_name_works_in_every_role(
    name: str, role: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    named = Named(tmp_path, capfd, name, role)
    if (name, role) == (" a", "partition"):  # blanks around a column are left out of partition_by
        refused(named, "the type of column 'a' is unknown")
    else:
        works(named)


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", REFUSED)
def test_every_other_name_is_refused_with_its_reason(
    name: str, role: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(Named(tmp_path, capfd, name, role), REFUSED[name])


@pytest.mark.parametrize(
    "name",
    [
        "shop.n\0l",
        "shop.a/b",
        "shop.a\\b",
        "shop.",
        "shop..",
        "shop.a\nb",
        "shop." + "é" * 120,
        "shop.a#b",
        "shop. ",
        "#.a",
    ],
)
def test_tables_of_impossible_names_are_refused(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    named = Named(tmp_path, capfd, "a", "payload")
    config = tmp_path / "nevermore.yaml"
    document = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({"tables": {name: document["tables"]["shop.products"]}}))
    code, _, errors = named.run("ingest")
    assert code == 2
    assert "must be namespace.table" in errors


@pytest.mark.parametrize("table", ["../../x", "x#y", "x?y", " "])
def test_a_feed_cannot_make_a_pattern_write_outside_of_its_namespace(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], table: str
) -> None:
    named = Named(tmp_path, capfd, "a", "payload")
    config = tmp_path / "nevermore.yaml"
    document = yaml.safe_load(config.read_text())["tables"]["shop.products"]
    config.write_text(yaml.safe_dump({"tables": {"shop.*": document}}))
    named.land("1.jsonl", event("c", {"id0": 1}, table=table))
    code, output, errors = named.run("ingest")
    assert code in {1, 2}
    assert "an invalid table name" in output + errors
    assert not list(tmp_path.glob("warehouse/**/x*"))
