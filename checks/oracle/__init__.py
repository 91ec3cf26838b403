"""A second reading of Iceberg tables, written from the rules alone: no code is shared with the engine under test."""
