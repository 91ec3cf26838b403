"""Decoding of raw events to change batches: types, columns, row images and their assembly."""
