"""Kernels compiled to machine code: how they are declared, compiled, stored and loaded, and when they pay."""

from scan_core.native import kernels  # declares its own to `machine_code`, which imports none

__all__ = ["kernels"]
