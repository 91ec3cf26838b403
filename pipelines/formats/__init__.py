"""The formats of feeds, one module for each."""
