"""A scan as the string options of a Spark data source, and back.

Strings are all that SQL (`OPTIONS (...)`), Spark Connect and a remote driver can carry. What they name is read again
where Spark plans; a pinned metadata file and snapshot make that the same scan.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scan_core.errors import OptionError
from scan_core.location import Location, parse_location
from scan_core.options import ScanOptions
from scan_core.runtime_filter.join_text import joins_as_text, joins_from_text

if TYPE_CHECKING:
    from scan_core.scan import Scan

_TABLE_ALIASES = ("table", "path")
"""`.load("...")` arrives as `path`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of `format("nevermore")`.

    Attributes:
        table: table directory, metadata file, or `catalog.namespace.table`.
        columns: columns of the result, in order; None for all. As text: names with commas, or a JSON list.
        where: rows of the result, as SQL; exact, Spark need not filter again.
        joins: keys that rows must have, as `runtime_filter/join_text.py` writes them; prefilters among them may keep more.
        snapshot: id of the snapshot to read.
        as_of: point in time to read as of: ISO 8601, or milliseconds since the epoch.
        ref: branch or tag to read.
        sample: which random part of the rows to look at: a fraction, and after a comma a seed.
        relocate: old prefix of paths -> new prefix. As text: a JSON object, or `OLD=NEW` pairs with commas.
        properties: catalog and FileIO properties. As text: a JSON object.
        scan_options: members of ScanOptions by name. As text: a JSON object.
        parallelism: tasks Spark runs at once; splits become small enough to keep all of them busy.
        metrics_dir: folder for the reports of tasks, see `TaskReports`.
    """

    table: str
    columns: tuple[str, ...] | None = None
    where: str | None = None
    joins: str | None = None
    snapshot: int | None = None
    as_of: str | None = None
    ref: str | None = None
    sample: str | None = None
    relocate: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    scan_options: Mapping[str, Any] = field(default_factory=dict)
    parallelism: int = 1
    metrics_dir: Path | None = None

    @classmethod
    def of(cls, scan: "Scan", *, parallelism: int = 1, metrics_dir: Path | None = None) -> "SourceOptions":
        """Options that stand for `scan`, its metadata file and so its snapshot pinned. A limit is not among them."""
        defaults = ScanOptions()
        changed = {f.name for f in fields(ScanOptions) if getattr(scan.options, f.name) != getattr(defaults, f.name)}
        return cls(
            table=scan.table.metadata_path,
            columns=scan.columns,
            where=" and ".join(f"({predicate})" for predicate in scan.predicates) or None,
            joins=joins_as_text(scan.joins) if scan.joins else None,
            snapshot=scan.snapshot_id,
            as_of=None if scan.timestamp_ms is None else str(scan.timestamp_ms),
            ref=scan.ref,
            sample=None if scan.row_sample is None else f"{scan.row_sample.fraction!r},{scan.row_sample.seed}",
            relocate=dict(scan.table.io.relocate) | _allowed(scan.table.io.places or ()),
            properties=dict(scan.table.io.properties),
            scan_options={name: getattr(scan.options, name) for name in sorted(changed)},
            parallelism=parallelism,
            metrics_dir=metrics_dir,
        )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Options from text.

        Raises:
            OptionError: an unknown option (names the nearest), no table, or a value that does not parse.
        """
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {}
        for raw_name, text in options.items():
            name = "table" if raw_name.lower() in _TABLE_ALIASES else raw_name.lower()
            if name not in known:
                near = get_close_matches(name, sorted(known), n=1, cutoff=0.0)
                raise OptionError(f"unknown option {raw_name!r}; did you mean {near[0]!r}?")
            if name in values:
                raise OptionError(f"option {name!r} is given twice ({' and '.join(_TABLE_ALIASES)} are the same)")
            values[name] = _parse_value(name, text)
        if "table" not in values:
            raise OptionError(
                "option 'path' is missing: a table directory, metadata file or catalog.namespace.table, as in "
                "OPTIONS (path '/warehouse/shop/orders')"
            )
        return cls(**values)

    def as_text(self) -> dict[str, str]:
        """The inverse of `parse`; options at their default are left out."""
        result: dict[str, str] = {"table": self.table}
        if self.columns is not None:
            result["columns"] = json.dumps(list(self.columns))
        for name in ("where", "joins", "snapshot", "as_of", "ref", "sample", "metrics_dir"):
            if getattr(self, name) is not None:
                result[name] = str(getattr(self, name))
        for name in ("relocate", "properties", "scan_options"):
            if getattr(self, name):
                result[name] = json.dumps(dict(getattr(self, name)))
        if self.parallelism != 1:
            result["parallelism"] = str(self.parallelism)
        return result

    def scan(self) -> "Scan":
        """The scan they ask for.

        Raises:
            ScanError: table, snapshot, column or predicate are wrong.
        """
        from scan_core.table import open_table

        table = open_table(self.table, relocate=dict(self.relocate), properties=dict(self.properties))
        scan = table.scan().with_options(_scan_options(self.scan_options))
        if self.snapshot is not None:
            scan = scan.as_of_snapshot(self.snapshot)
        if self.as_of is not None:
            scan = scan.as_of_time(self.as_of)
        if self.ref is not None:
            scan = scan.at_ref(self.ref)
        if self.columns is not None:
            scan = scan.select(*self.columns)
        if self.sample is not None:
            scan = scan.sample(*_sample(self.sample))
        if self.joins is not None:
            scan = replace(scan, joins=joins_from_text(self.joins))
        return scan if self.where is None else scan.where(self.where)


def _allowed(places: Sequence[str]) -> dict[str, str]:
    """Places of a table's files as relocations to themselves: where only its path is known, its catalog is not asked."""
    of_files = (parse_location(place) for place in places[1:])
    named = {str(Location("file", "", x.path)) if x.is_local else str(x) for x in of_files}
    return {place: place for place in sorted(named)}


def _parse_value(name: str, text: str) -> Any:
    try:
        match name:
            case "columns":
                return tuple(json.loads(text)) if text.lstrip().startswith("[") else _names(text)
            case "snapshot" | "parallelism":
                return int(text)
            case "relocate" if not text.lstrip().startswith("{"):
                return dict(pair.split("=", 1) for pair in _names(text))
            case "relocate" | "properties" | "scan_options":
                return dict(json.loads(text))
            case "metrics_dir":
                return Path(text)
            case _:
                return text
    except ValueError as error:
        raise OptionError(f"option {name!r}: cannot read {text!r:.80} ({error})") from error


def _sample(text: str) -> tuple[float, int]:
    fraction, _, seed = text.partition(",")
    try:
        return float(fraction), int(seed or 0)
    except ValueError as error:
        raise OptionError(
            f"option 'sample': cannot read {text!r:.80}: write a fraction, or 0.01,42 with a seed"
        ) from error


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _scan_options(values: Mapping[str, Any]) -> ScanOptions:
    known = sorted(f.name for f in fields(ScanOptions))
    for name in values:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.0)
            raise OptionError(f"unknown scan option {name!r}; did you mean {near[0]!r}?")
    return ScanOptions(**values)
