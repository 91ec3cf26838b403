"""Mirrors: changes folded to one state per key and written as data files and equality deletes."""
