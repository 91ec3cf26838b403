"""Predicate x statistics -> NEVER, MAYBE or ALWAYS. Pruning only narrows: what is unknown is kept."""
