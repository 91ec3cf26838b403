"""Kernels compiled to machine code, and when to use them. What they compute is also written in NumPy elsewhere."""
