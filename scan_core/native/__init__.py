"""Kernels compiled to machine code: how they are declared, compiled, stored and loaded, and when they pay."""
