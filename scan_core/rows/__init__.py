"""Sets of row positions."""
