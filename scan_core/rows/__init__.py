"""Sets of row positions and what they do to columns."""
