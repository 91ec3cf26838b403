import errno
import os
import re
from functools import partial
from pathlib import Path

import pytest

from nevermore.pipelines.config.document import TEMPLATE, dagster_home
from nevermore.pipelines.config.project import change_log_name, load, parse, quarantine_name, write_config
from nevermore.pipelines.config.tables import partition_field
from nevermore.pipelines.errors import ConfigError

MINIMAL = """
tables:
  shop.products:
    source: {path: "landing/*.jsonl"}
    key: [id]
"""


def with_lines(*lines: str) -> str:
    return MINIMAL + "".join(f"    {line}\n" for line in lines)


def test_least_config_has_an_embedded_catalog_beside_it(tmp_path: Path) -> None:
    config = parse(MINIMAL, tmp_path / "nevermore.yaml")
    assert config.catalog.uri == f"sqlite:///{tmp_path}/warehouse/catalog.db"
    assert config.catalog.warehouse == f"file://{tmp_path}/warehouse"
    table = config.tables["shop.products"]
    assert table.source.path == (f"{tmp_path}/landing/*.jsonl",)
    assert table.source.format is None
    assert table.key == ("id",)
    assert (table.inserts, table.identity) == ("checked", "key")


def test_template_is_a_valid_config(tmp_path: Path) -> None:
    file = tmp_path / "nevermore.yaml"
    file.write_text(TEMPLATE)
    assert list(load(file).tables) == ["shop.products"]


def test_every_option_of_the_documentation_is_read(tmp_path: Path) -> None:
    config = parse(
        """
catalog: {type: rest, uri: "http://localhost:8181", warehouse: shop, s3.endpoint: "http://s3"}
tables:
  shop.products:
    source: {type: files, path: [a/*.json, "s3://bucket/b/*.json"], format: debezium-json}
    key: [id]
    order_by: [source.ts_ms, source.row]
    types: {weight: double, price: "decimal(10,2)"}
    partition_by: [day(created_at), "bucket(16, id)", region]
    rename: {a: b}
    cast: {quantity: long}
    inserts: checked
    soft_delete: true
    commit_rows: 1000
    commit_interval: 5m
    memory_limit_bytes: 512MiB
    max_quarantine_ratio: 0.1
published:
  shop.daily: {partition: day, sql: "select 1"}
""",
        tmp_path / "nevermore.yaml",
    )
    table = config.tables["shop.products"]
    assert config.catalog.properties["s3.endpoint"] == "http://s3"
    assert config.catalog.uri == "http://localhost:8181"
    assert config.catalog.warehouse == "shop"
    assert table.source.path == (f"{tmp_path}/a/*.json", "s3://bucket/b/*.json")
    assert table.order_by == ("source.ts_ms", "source.row")
    assert table.commit_interval == 300.0
    assert table.memory_limit_bytes == 512 * 1024**2
    assert config.published["shop.daily"].partition == "day"


@pytest.mark.each(17)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (with_lines("ordr_by: position"), "nevermore.yaml:6: unknown key 'ordr_by'; did you mean 'order_by'?"),
        ("tabels: {}", "unknown key 'tabels'; did you mean 'tables'?"),
        ("tables:\n  shop.t:\n    key: [id]\n", "nevermore.yaml:2: 'source' is missing"),
        ("tables:\n  shop.t:\n    source: {pth: x}\n", "unknown key 'pth'; did you mean 'path'?"),
        ("tables:\n  products:\n    source: {path: x}\n", "'products' must be namespace.table"),
        (
            with_lines("types: {weight: dubble}"),
            "nevermore.yaml:6: tables.shop.products.types.weight: unknown type 'dubble'",
        ),
        (with_lines("partition_by: [dy(created_at)]"), "transforms are identity"),
        (with_lines("partition_by: [bucket(id)]"), "write bucket(16, column)"),
        (with_lines("inserts: sometimes"), "'checked' or 'trusted'"),
        (with_lines("inserts: trusted", "order_by: [lsn]"), "inserts: trusted cannot be combined with order_by"),
        (
            with_lines("max_quarantine_ratio: 2"),
            "nevermore.yaml:6: tables.shop.products.max_quarantine_ratio: must be at most 1",
        ),
        (
            with_lines("commit_rows: many"),
            "nevermore.yaml:6: tables.shop.products.commit_rows: must be a whole number, not 'many'",
        ),
        (
            with_lines("commit_interval: 5 minutes"),
            "commit_interval: '5 minutes' is not a duration; write a number of seconds, or text such as",
        ),
        (with_lines("rename: {a: 1}"), "tables.shop.products.rename.a: must be text, not 1; write it in quotes"),
        (with_lines("order_by: ts"), "order_by: must be 'position' or a name, or a list of names: [a, b], not 'ts'"),
        (with_lines("order_by: []"), "nevermore.yaml:6: tables.shop.products.order_by"),
        (with_lines("order_by: [a, b, a]"), "'a' occurs twice"),
        (
            MINIMAL.replace("key: [id]", "key: [id, id]"),
            "nevermore.yaml:5: tables.shop.products.key.1: 'id' occurs twice",
        ),
        (with_lines("partition_by: [id, id]"), "partition_by.1: 'id' occurs twice"),
        (
            with_lines("commit_rows: true"),
            "nevermore.yaml:6: tables.shop.products.commit_rows: must be a number, not true",
        ),
        (with_lines("commit_interval: true"), "commit_interval: must be a number, not true"),
        (with_lines("memory_limit_bytes: true"), "memory_limit_bytes: must be a number, not true"),
        (with_lines("max_quarantine_ratio: false"), "max_quarantine_ratio: must be a number, not false"),
        (with_lines("maintenance: {keep_snapshots: true}"), "keep_snapshots: must be a number, not true"),
        (with_lines("commit_interval: yes"), "commit_interval: 'yes' is not a duration"),
        (with_lines("memory_limit_bytes: on"), "memory_limit_bytes: 'on' is not a size"),
        (with_lines("max_quarantine_ratio: no"), "max_quarantine_ratio: must be a number, not 'no'"),
        (with_lines("maintenance: {keep_snapshots: yes}"), "keep_snapshots: must be a whole number, not 'yes'"),
        *(
            (with_lines(line), f"nevermore.yaml:6: {value} is not a number in all versions of YAML")
            for value in ("010", "1:30", "1_000", "0x10", "0b1", "-010")
            for line in (
                f"commit_rows: {value}",
                f"maintenance: {{keep_snapshots: {value}}}",
                f"partition_by: [a, {value}]",
            )
        ),
        (with_lines("max_quarantine_ratio: 0:30.5"), "max_quarantine_ratio: must be a number, not '0:30.5'"),
        (with_lines("commit_interval: 99999999999d"), "commit_interval: must be at most"),
        (with_lines("maintenance: {keep_log: 99999999999d}"), "keep_log: must be at most"),
        (with_lines("memory_limit_bytes: 99999999999999999999"), "memory_limit_bytes: must be at most"),
        (with_lines("commit_rows: 99999999999999999999"), "commit_rows: must be at most"),
        (
            MINIMAL + "published:\n  a.b: {sql: select 1 as a, start: 2026-01-01}\n",
            "start applies only to a table with a partition",
        ),
        (MINIMAL + "threads: true\n", "threads: must be a number, not true"),
        (with_lines("types: [a]"), "types: must be a mapping, with one `name: value` per line, not ['a']"),
        ("tables:", "nevermore.yaml:1: tables: must be a mapping, with one `name: value` per line, not nothing"),
        (with_lines("true: 1"), "nevermore.yaml:6: YAML reads the key true as bool; write it in quotes"),
        (
            "tables: {}\npublished:\n  a.b: {sql: x, start: 2026-13-01}\n",
            "nevermore.yaml:3: not YAML: 2026-13-01 is not a date",
        ),
        ("tables:\n\tshop.t: {}", "nevermore.yaml:2: not YAML: a tab instead of spaces"),
        (
            with_lines("memory_limit_bytes: lots"),
            "memory_limit_bytes: 'lots' is not a size; write a number of bytes, or text such as 512MiB, 2GiB",
        ),
        (with_lines("exclude: [id]"), "key columns cannot be excluded: id"),
        (with_lines("identity: full"), "remove one of the two"),
        (with_lines("key: [other]"), "nevermore.yaml:6: 'key' occurs twice"),
        ("tables: [", "not YAML"),
        ("just text", "a config is a mapping with the sections"),
        (
            MINIMAL.replace("landing/", "${NO_SUCH_VARIABLE}/"),
            "nevermore.yaml:4: environment variable NO_SUCH_VARIABLE",
        ),
        (
            MINIMAL + "  shop_products.x:\n    source: {path: y}\n  shop.products_x:\n    source: {path: y}\n",
            "would share the change log change_log.shop_products_x",
        ),
        (
            "tables:"
            + "".join(f"\n  a.{n}: {{source: {{type: python, asset: marts/totals}}, key: [id]}}" for n in "xy")
            + "\n",
            "nevermore.yaml:3: tables.a.y: would share the asset marts/totals with a.x; rename one of them",
        ),
    ],
)
def test_wrong_config_is_refused_with_line_and_hint(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    with pytest.raises(ConfigError) as error:
        parse(text)
    assert message in str(error.value)
    assert "Input should" not in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert error.value.exit_code == 2


@pytest.mark.parametrize("text", ["no", "off", "1.10", "1e3", ".5", "1.0", "true", "2026-01-05", "7"])
def test_text_is_what_the_config_says(text: str) -> None:
    config = parse(with_lines(f"properties: {{a: {text}}}", f"tags: {{a: {text}}}")).tables["shop.products"]
    assert (config.properties["a"], config.tags["a"]) == (text, text)


@pytest.mark.parametrize("text", ["0.5", ".5", "0.50", "5e-1", "+0.5"])
def test_a_number_may_be_written_in_several_ways(text: str) -> None:
    assert parse(with_lines(f"max_quarantine_ratio: {text}")).tables["shop.products"].max_quarantine_ratio == 0.5


@pytest.mark.parametrize(("text", "value"), [("yes", True), ("On", True), ("no", False), ("OFF", False)])
def test_words_are_true_or_false_where_options_are(text: str, value: bool) -> None:  # noqa: FBT001
    assert parse(with_lines(f"soft_delete: {text}")).tables["shop.products"].soft_delete is value


@pytest.mark.parametrize("text", ["null", "'null'"])
def test_the_word_null_is_a_choice_although_yaml_reads_it_as_nothing(text: str) -> None:
    assert parse(with_lines(f"infinite_dates: {text}")).tables["shop.products"].infinite_dates == "null"


def test_days_and_years_of_yaml_are_keys_of_partitions() -> None:
    text = (
        MINIMAL
        + "published:\n  a.b: {sql: x, partition: day, start: 2026-01-31}\n  a.c: {sql: x, partition: year(day), start: 2026}\n"
    )
    published = parse(text).published
    assert (published["a.b"].start, published["a.c"].start) == ("2026-01-31", "2026")


def test_several_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        parse(with_lines("ordr_by: position", "inserts: sometimes"))
    assert len(str(error.value).splitlines()) == 2


def test_every_wrong_type_is_told_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError) as error:
        parse(with_lines("types: {weight: dubble, id: bigint}", "cast: {name: 'decimal(50, 2)'}"))
    weight, key, name = str(error.value).splitlines()
    assert (
        "types.weight: unknown type 'dubble'; did you mean 'double'? valid types are boolean, int, long, float"
        in weight
    )
    assert "types.id: unknown type 'bigint'" in key
    assert "did you mean 'long'?" in key
    assert "cast.name: decimal precision must be 1..38" in name


@pytest.mark.parametrize("kind", ["timestamp_ns", "timestamptz_ns"])
def test_types_that_change_logs_cannot_hold_are_refused(kind: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"types.weight: {kind}: change logs hold times in microseconds; use timestamp"
    ):
        parse(with_lines(f"types: {{weight: {kind}}}"))


def test_environment_fills_values_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANDING", "/in")
    config = parse(MINIMAL.replace("landing/*.jsonl", "${LANDING}/${KIND:-json}/*"))
    assert config.tables["shop.products"].source.path == ("/in/json/*",)


@pytest.mark.parametrize("value", ["[a-secret]", "{a: b}"])
def test_a_property_of_a_catalog_is_plain(tmp_path: Path, value: str) -> None:
    path = tmp_path / "nevermore.yaml"
    path.write_text(f"catalog: {{type: rest, uri: 'http://h', token: {value}}}\ntables: {{}}\n")
    with pytest.raises(ConfigError, match=r"catalog\.token: .* text, a number, or true") as refused:
        load(path)
    assert "a-secret" not in str(refused.value)


def test_what_is_no_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "nevermore.yaml")
    for path in (tmp_path / "nevermore.yaml", tmp_path):
        with pytest.raises(ConfigError, match="is not a regular file; specify the config file"):
            load(path)


def test_missing_file_names_the_command_that_writes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nevermore init"):
        load(tmp_path / "nevermore.yaml")


def test_names_of_log_and_quarantine() -> None:
    assert change_log_name("shop.products") == "change_log.shop_products"
    assert quarantine_name("shop.products") == "quarantine.shop_products"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("region", ("identity", "region")),
        ("days(created_at)", ("day", "created_at")),
        ("hour(at)", ("hour", "at")),
        ("bucket(16, id)", ("bucket[16]", "id")),
        ("bucket(id, 16)", ("bucket[16]", "id")),
        ("truncate(4, sku)", ("truncate[4]", "sku")),
    ],
)
def test_partition_fields_in_every_spelling(text: str, expected: tuple[str, str]) -> None:
    assert partition_field(text) == expected


def test_where_spark_runs_is_a_section_of_its_own(tmp_path: Path) -> None:
    text = MINIMAL + "spark: {master: 'spark://host:7077', package: dist/our.zip, conf: {spark.executor.cores: 2, spark.speculation: true}}\n"  # fmt: skip
    spark = parse(text, tmp_path / "nevermore.yaml").spark
    assert spark.conf == {"spark.executor.cores": "2", "spark.speculation": "true"}
    assert spark.package == f"{tmp_path}/dist/our.zip"
    moved = spark.at(remote="sc://host:15002")
    assert (moved.master, moved.remote, moved.conf) == (None, "sc://host:15002", spark.conf)
    assert parse(MINIMAL, tmp_path / "nevermore.yaml").spark.package == "auto"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("spark: {master: yarn, remote: 'sc://host'}", "master and remote are mutually exclusive"),
        ("spark: {remote: 'spark://host:7077'}", "not a Spark Connect server; write sc://host:15002"),
        ("spark: {master: 'lokal[2]'}", "'lokal[2]' is not a Spark master; write local[4]"),
        ("spark: {mastre: yarn}", "unknown key 'mastre'; did you mean 'master'?"),
        (
            "published: {shop.d: {sql: s, partition: day, options: {target_file_size: 1g}}}",
            "did you mean 'target_file_bytes'?",
        ),
        ("published: {shop.d: {sql: s, partition: day, mode: upsert}}", "mode: upsert requires the columns"),
        (
            "published: {shop.d: {sql: s, partition: day, options: {distribution: range}}}",
            "requires the columns that define the ranges",
        ),
        ("published: {shop.d: {sql: s, partition: day, schedule: every day}}", "'every day' is not a cron expression"),
        (
            "published: {shop.d: {sql: s, partition: day, schedule: '0 25 * * *'}}",
            "'0 25 * * *' is not a cron expression",
        ),
        ("published: {shop.d: {sql: s, schedule: '0 1 * * *'}}", "the table must be partitioned by time"),
        (
            "published: {shop.d: {sql: s, partition: value(x), schedule: '0 1 * * *'}}",
            "the table must be partitioned by time",
        ),
    ],
)
def test_what_spark_cannot_do_is_told_with_its_place(section: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(f"{MINIMAL}{section}\n")


def test_two_places_of_the_command_line_are_refused() -> None:
    with pytest.raises(ConfigError, match="--master and --remote are mutually exclusive"):
        parse(MINIMAL).spark.at("local[2]", "sc://host")


def test_master_of_the_command_line_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="--master: 'foo' is not a Spark master"):
        parse(MINIMAL).spark.at("foo")


@pytest.mark.parametrize("cron", ["0 1 * * *", "*/15 0-6,22 1 JAN-MAR mon", "0  2 * * 1-5"])
def test_schedules_are_cron_expressions(cron: str) -> None:
    text = f"{MINIMAL}published: {{shop.d: {{sql: s, partition: day, schedule: '{cron}'}}}}\n"
    assert parse(text).published["shop.d"].schedule == cron


@pytest.mark.parametrize(
    ("name", "catalog", "said"),
    [
        ("a#b", "", "catalog.warehouse: # in"),
        ("a?b", "", "catalog.uri: ? in"),
        ("a%20b", "", "catalog.uri: %20 in"),
        ("plain", "{warehouse: 'a#b'}", "catalog.warehouse: # in"),
        ("plain", "{warehouse: 'a?b'}", "catalog.warehouse: ? in"),
        ("plain", "{uri: 'sqlite:///a%20b/catalog.db'}", "catalog.uri: %20 in"),
    ],
)
def test_folders_that_libraries_take_for_other_folders_are_refused(
    tmp_path: Path, name: str, catalog: str, said: str
) -> None:
    text = MINIMAL + (f"catalog: {catalog}\n" if catalog else "")
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse(text, tmp_path / name / "nevermore.yaml")


@pytest.mark.parametrize("name", ["a?b", "a%20b"])
def test_folders_that_dagster_takes_for_other_folders_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="DAGSTER_HOME"):
        dagster_home(tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("written", "is_ours"),
    [
        (None, True),
        ("up to", True),
        ("telemetry:\n  enabled: true\n", False),
        ("all and more", False),
    ],
)
def test_settings_of_dagster_that_an_earlier_version_wrote_are_brought_up_to_date(
    tmp_path: Path, written: str | None, *, is_ours: bool
) -> None:
    settings = dagster_home(tmp_path) / "dagster.yaml"
    ours = settings.read_text()
    assert "run_monitoring" in ours
    settings.unlink()
    if written == "up to":
        written = ours[: ours.index("run_launcher")]
    elif written == "all and more":
        written = ours + "retention:\n"
    if written is not None:
        settings.write_text(written)
    dagster_home(tmp_path)
    assert settings.read_text() == (ours if is_ours else written)


@pytest.mark.each(2)
@pytest.mark.parametrize("has_one", [True, False])
@pytest.mark.parametrize("written", ["nevermore.yaml", "nevermore.schema.json"])
def test_a_config_that_finds_no_room_is_whole_or_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, *, has_one: bool
) -> None:
    path = tmp_path / "nevermore.yaml"
    if has_one:
        path.write_text("tables: {}")
    monkeypatch.setattr("os.fchmod", partial(_fail_at, path.with_name(written)))
    with pytest.raises(OSError, match="No space left"):
        write_config(path, TEMPLATE)
    left = {file.name for file in tmp_path.iterdir()} - {"nevermore.schema.json"}
    assert left == ({path.name} if has_one else set())
    assert not has_one or path.read_text() == "tables: {}"
    monkeypatch.undo()
    write_config(path, TEMPLATE)
    assert path.read_text().endswith(TEMPLATE)


def test_a_config_that_is_written_again_stays_where_a_link_points_with_its_rights(tmp_path: Path) -> None:
    kept = tmp_path / "kept" / "shop.yaml"
    kept.parent.mkdir()
    kept.touch(0o600)
    path = tmp_path / "nevermore.yaml"
    path.symlink_to(kept)
    write_config(path, TEMPLATE)
    assert (path.readlink(), kept.stat().st_mode & 0o777) == (kept, 0o600)
    assert kept.read_text().endswith(TEMPLATE)


def _fail_at(path: Path, descriptor: int, _: int) -> None:
    if Path(f"/proc/self/fd/{descriptor}").readlink().name.startswith(f".{path.name}."):
        raise OSError(errno.ENOSPC, "No space left on device")
