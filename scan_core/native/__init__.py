"""Kernels compiled to machine code: how they are declared, compiled, stored and loaded, and when they pay."""

from typing import TYPE_CHECKING

from nevermore.scan_core.model.exports import lazy_exports
from nevermore.scan_core.native import (
    avro_kernels as avro_kernels,  # declare their own to `machine_code`, which imports none
)
from nevermore.scan_core.native import kernels as kernels

if TYPE_CHECKING:
    from nevermore.scan_core.native.compiled import is_missed as is_missed
    from nevermore.scan_core.native.machine_code import KEYS as KEYS
    from nevermore.scan_core.native.machine_code import callee as callee
    from nevermore.scan_core.native.machine_code import inlined as inlined
    from nevermore.scan_core.native.machine_code import intrinsic as intrinsic
    from nevermore.scan_core.native.machine_code import kernel as kernel
    from nevermore.scan_core.native.machine_code import load_kernels as load_kernels
    from nevermore.scan_core.native.machine_code import machine_code_file as machine_code_file
    from nevermore.scan_core.native.machine_code import uncompiled as uncompiled
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "nevermore.scan_core.native.compiled": "is_missed",
            "nevermore.scan_core.native.machine_code": "KEYS callee inlined intrinsic kernel load_kernels machine_code_file uncompiled",
        },
    )
