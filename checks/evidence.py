"""What a failed check shows of its keys: the snapshot, the files that hold their rows, and the command that tells more."""

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from checks.comparison import CheckResult
from checks.subject import Subject
from scan_core import KeyReport, ScanError, key_report

MAX_TRACED_KEYS = 3
"""Keys whose files are named; each costs a scan with a filter on the key."""


def with_evidence(result: CheckResult, subject: Subject, command: Sequence[str]) -> CheckResult:
    """The result of a check of a mirror; if it failed, with snapshot, files and commands.

    Args:
        result: of any check of `subject`.
        subject: the mirror.
        command: how commands name the table, such as `["shop.orders", "--config", "nevermore.yaml"]`.
    """
    if result.passed:
        return result
    snapshot_id = subject.opened.metadata.current_snapshot_id
    details, commands = [*result.details, f"in snapshot {snapshot_id} of {command[0]}"], list[str]()
    keys = [{name: row[name] for name in subject.key} for row in result.offending_keys if {*subject.key} <= row.keys()]
    for key in keys[:MAX_TRACED_KEYS] if subject.key else ():
        text = key_text(key)
        if text is None:
            continue
        at = [] if snapshot_id is None else ["--snapshot", str(snapshot_id)]
        commands.append(shlex.join(["nevermore", "why", command[0], "--key", text, *at, *command[1:]]))
        try:
            details += _traces(text, key_report(subject.opened.scan(), key))
        except ScanError as error:  # a damaged table, which other checks report, or a key without a text form
            details.append(f"{text}: cannot be looked up: {error}")
    return replace(result, details=details, reproduce=commands)


def key_text(key: Mapping[str, Any]) -> str | None:
    """A key as `nevermore why --key` reads it; None if a value has no text that the command reads back."""
    parts = []
    for name, value in key.items():
        if "=" in name or isinstance(value, bytes | dict | list):
            return None
        text = "null" if value is None else str(value)
        is_ambiguous = isinstance(value, str) and (value.lower() == "null" or value[:1] == value[-1:] == "'")
        parts.append(f"{name}='{text}'" if is_ambiguous else f"{name}={text}")
    written = io.StringIO()
    csv.writer(written, lineterminator="").writerow(parts)
    return written.getvalue()


def _traces(text: str, report: KeyReport) -> list[str]:
    if report.seen_in is None:
        return [f"{text}: no snapshot of the table has a row with this key"]
    if report.seen_in != report.snapshot:
        gone = "" if report.removed_in is None else f"; snapshot {report.removed_in.snapshot_id} removed the files"
        return [f"{text}: last in {row.file} row {row.position}{gone}" for row in report.rows]
    return [
        f"{text}: alive in {row.file} row {row.position}"
        if row.deleted_by is None
        else f"{text}: in {row.file} row {row.position}, deleted by {row.deleted_by.path}"
        for row in report.rows
    ]
