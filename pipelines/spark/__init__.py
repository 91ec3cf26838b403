"""Spark as the pipelines use it: the session that a config asks for, our code on its workers, mirrors as views."""
