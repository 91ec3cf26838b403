"""Mirrors: changes folded to one state per key, written as data files and equality deletes."""
