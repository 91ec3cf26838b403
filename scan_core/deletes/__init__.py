"""Deletes of a data file: loading, indexing, and applying them.

Which deletes a data file has is decided in `plan/delete_index.py`, what they skip while a file is read in `read/task.py`.
"""
