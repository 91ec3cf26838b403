"""Kernels compiled to machine code: how they are declared, compiled, stored and loaded, and when they pay."""

from typing import TYPE_CHECKING

from scan_core.model.exports import lazy_exports
from scan_core.native import kernels as kernels  # declares its own to `machine_code`, which imports none

if TYPE_CHECKING:
    from scan_core.native.compiled import is_missed as is_missed
    from scan_core.native.machine_code import KEYS as KEYS
    from scan_core.native.machine_code import callee as callee
    from scan_core.native.machine_code import inlined as inlined
    from scan_core.native.machine_code import intrinsic as intrinsic
    from scan_core.native.machine_code import kernel as kernel
    from scan_core.native.machine_code import load_kernels as load_kernels
    from scan_core.native.machine_code import machine_code_file as machine_code_file
    from scan_core.native.machine_code import uncompiled as uncompiled
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "scan_core.native.compiled": "is_missed",
            "scan_core.native.machine_code": "KEYS callee inlined intrinsic kernel load_kernels machine_code_file uncompiled",
        },
    )
