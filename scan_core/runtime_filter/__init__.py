"""Filters that a join's build side makes at run time: key sets and ranges, pushed into planning and reading."""
