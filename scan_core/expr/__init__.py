"""Expressions: SQL text and Python objects, bound to a schema, evaluated on columns."""
