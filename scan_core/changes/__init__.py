"""What changed between two snapshots of a table: rows inserted and rows deleted, found in the files that differ."""
