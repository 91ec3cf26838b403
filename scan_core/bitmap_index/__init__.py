"""Bitmap indexes of data files: which rows have which value, in Puffin files, and what they answer of a predicate."""
