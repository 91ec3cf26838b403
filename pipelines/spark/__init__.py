"""Spark for the pipelines: the session, and our code on its workers."""
