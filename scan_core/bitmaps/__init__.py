"""Bitmap indexes of data files in Puffin files."""
