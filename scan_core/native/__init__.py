"""Kernels compiled to machine code: how they are declared, compiled, stored and loaded, and when they pay."""

from nevermore.scan_core.model.exports import lazy_exports
from nevermore.scan_core.native import (
    avro_kernels as avro_kernels,  # declare their own to `machine_code`, which imports none
)
from nevermore.scan_core.native import kernels as kernels

__getattr__, __dir__, __all__ = lazy_exports(__name__)
