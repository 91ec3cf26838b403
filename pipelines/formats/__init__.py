"""The formats of feeds, one module for each.

To add one, write a module here and add it to `FORMATS` in `registry.py`. Where events come from is in `sources/`.
"""
