"""Fixtures of Nevermore: nevermore_config, nevermore_mirror, nevermore_published."""

pytest_plugins = ["nevermore.checks.testing"]
