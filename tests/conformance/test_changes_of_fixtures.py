"""Changes between the snapshots of the shared fixture tables are the difference of their rows."""

from pathlib import Path

import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.checks.comparison import canonical, compare
from tests.support.fixture_tables import fixture_tables


@pytest.mark.each(13)
@pytest.mark.parametrize("name", fixture_tables())
def test_changes_are_the_difference_of_rows(shared_dir: Path, name: str) -> None:
    fixture = fixture_tables()[name]
    table = scan_core.open_table(fixture.metadata, relocate=fixture.relocate)
    compared = 0
    known = {int(s) for s in fixture.facts["rows_by_snapshot"]}
    for later in (table.metadata.snapshots[i] for i in sorted(known)):
        line = [s for s in table.metadata.ancestors(later.snapshot_id) if s.snapshot_id in known]
        for earlier in {s.snapshot_id: s for s in (line[0], line[min(1, len(line) - 1)], line[-1])}.values():
            if table.metadata.schema_of(earlier) != table.metadata.schema_of(later):
                continue
            changes = table.scan().changes(earlier.snapshot_id, later.snapshot_id)
            before, after = (canonical(table.scan().as_of_snapshot(s.snapshot_id).to_table()) for s in (earlier, later))
            deleted, inserted = canonical(changes.deletes.to_table()), canonical(changes.inserts.to_table())
            assert compare(pa.concat_tables([before, inserted]), pa.concat_tables([after, deleted])).equal
            difference = compare(before, after)
            assert (deleted.num_rows, inserted.num_rows) == (difference.num_left_only, difference.num_right_only)
            compared += earlier != later
    assert compared or len(known) < 3
