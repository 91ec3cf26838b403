"""The formats of feeds, one module for each.

To add one, write a module here, add it to `FORMATS` in `registry.py`, and its options to `OPTIONS` in `options.py`.
Where events come from is in `sources/`.
"""
