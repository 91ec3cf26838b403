"""Predicate x statistics -> NEVER, MAYBE or ALWAYS. Pruning only narrows: anything unknown is kept."""
