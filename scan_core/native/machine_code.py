"""Kernels as machine code: compiled by Numba once per machine and kept in a file, from which later processes load them.

Loading takes 0.04 s, importing Numba and its own cache 0.7 s, compiling 4 s. The file is trusted as Python's own
`__pycache__` is, so it and its folder must belong to the user or the system and be writable by nobody else.
"""

import ctypes
import hashlib
import inspect
import json
import os
import pkgutil
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from scan_core.errors import ScanError
from scan_core.private_files import UnsafeFileError, cache_folder, private_folder, trusted_content

Kernel = Callable[..., int]
"""Takes arrays and numbers as its signature says; releases the GIL. An array that is too short is an IndexError."""

_PREFIX = "nevermore_"
_DTYPES = {"u8*": "u1", "u32*": "u4", "i32*": "i4", "u64*": "u8", "i64*": "i8", "f64*": "f8"}
_DIGEST_BYTES = 32
_SHIPPED = "shipped"
"""Folder of code that came with the package."""
_SOURCES = ("arithmetic", "hashes", "machine_code", "numbers", "records", "tables")


class Kernels:
    """The kernels by name; `kernels["find"](hashes, len(hashes), ...)`."""

    def __init__(self, code: bytes, signatures: Mapping[str, str]) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self._by_name = {
            name: _bound(name, self._engine.get_function_address(_PREFIX + name), signature)
            for name, signature in signatures.items()
        }

    def __getitem__(self, name: str) -> Kernel:
        return self._by_name[name]


@cache
def is_available() -> bool:
    """Whether this environment can load machine code, and has some or can make it; workers of clusters may lack both."""
    return find_spec("llvmlite") is not None and (find_spec("numba") is not None or _kept() is not None)


def is_compiled() -> bool:
    """Whether an earlier process has left machine code for this one, or it came with the package."""
    return _kept() is not None


def machine_code_file() -> tuple[str, bytes]:
    """Name within the package, and content, of the code of this machine, compiled now if there is none: to be shipped."""
    if _kept() is None:
        load_kernels()
    kept = _kept()
    if kept is None:
        raise ScanError("no folder takes the compiled kernels; set NUMBA_CACHE_DIR to one that can be written")
    return f"scan_core/native/{_SHIPPED}/{_file_name()}", kept


def load_kernels() -> Kernels:
    """The kernels, from the file if there is one for this machine, else compiled and kept for the next process."""
    kept = _kept()
    if kept is None or (unpacked := _unpacked(kept)) is None:
        unpacked = _compiled()
        _keep(*unpacked)
    return Kernels(*unpacked)


def _bound(name: str, address: int, signature: str) -> Kernel:
    """Numba's functions take where to put the result and an exception, of which kernels have none, then the rest."""
    parameters = [_parsed(parameter) for parameter in signature.split()]
    places = {parameter: place for place, (parameter, _, _) in enumerate(parameters)}
    kinds = [ctypes.c_uint64 if dtype is None else ctypes.c_void_p for _, dtype, _ in parameters]
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *kinds)(address)
    arrays = [
        (place, parameter, dtype, _length(length, places))
        for place, (parameter, dtype, length) in enumerate(parameters)
        if dtype is not None
    ]

    def call(*arguments: Any) -> int:
        if len(arguments) != len(parameters):
            raise TypeError(f"the kernel {name} takes {len(parameters)} arguments, not {len(arguments)}")
        passed = list(arguments)
        for place, parameter, dtype, least in arrays:
            array = arguments[place]
            if array.dtype != dtype or not array.flags.c_contiguous:
                raise TypeError(f"{parameter} of the kernel {name} are contiguous {dtype} values, not {array.dtype}")
            if array.size < (wanted := least(arguments)):
                raise IndexError(f"{parameter} of the kernel {name} are {wanted} values at least, not {array.size}")
            passed[place] = array.ctypes.data
        passed = [int(argument) for argument in passed]
        result = ctypes.c_uint64()
        function(ctypes.addressof(result), None, *passed)
        return result.value

    return call


def _parsed(parameter: str) -> tuple[str, np.dtype[Any] | None, str]:
    """Name, type of values (None for a number) and least length of `name:kind[length]`."""
    name, kind = parameter.split(":")
    kind, _, length = kind.rstrip("]").partition("[")
    return name, np.dtype(_DTYPES[kind]) if kind.endswith("*") else None, length


def _length(length: str, places: Mapping[str, int]) -> Callable[[Sequence[Any]], int]:
    """How many values an array needs, out of the arguments of a call; `length` is a sum of products."""
    terms = [[places.get(factor, factor) for factor in term.split("*")] for term in length.split("+")]

    def least(arguments: Sequence[Any]) -> int:
        return sum(prod(int(arguments[f]) if isinstance(f, int) else int(f) for f in term) for term in terms)

    return least


def signatures() -> dict[str, tuple[Callable[..., Any], str]]:
    """By name: the function of each kernel, and its parameters as `name:kind[length]`."""
    from scan_core.native import hashes, numbers, records, tables

    return {
        name: (
            function,
            " ".join(map(":".join, zip(inspect.signature(function).parameters, kinds.split(), strict=True))),
        )
        for module in (hashes, tables, numbers, records)
        for name, (function, kinds) in module.SIGNATURES.items()
    }


def _compiled() -> tuple[bytes, dict[str, str]]:
    import llvmlite.binding as llvm
    import numba
    from numba import types

    kinds = {
        "u8*": types.CPointer(types.uint8),
        "u32*": types.CPointer(types.uint32),
        "i32*": types.CPointer(types.int32),
        "u64*": types.CPointer(types.uint64),
        "i64*": types.CPointer(types.int64),
        "f64*": types.CPointer(types.float64),
        "u64": types.uint64,
    }
    whole: Any = None
    kernels = signatures()
    for name, (function, signature) in kernels.items():
        parameters = (parameter.partition(":")[2].partition("[")[0] for parameter in signature.split())
        compiled = numba.cfunc(types.uint64(*(kinds[p] for p in parameters)), error_model="numpy")(function)
        part = llvm.parse_assembly(compiled.inspect_llvm())
        # what is called is not the wrapper, which needs Python, but what it wraps
        part.get_function(compiled.native_name.removeprefix("cfunc.")).name = _PREFIX + name
        if whole is None:
            whole = part
        else:
            whole.link_in(part)
    _drop_the_rest(whole)
    machine = llvm.Target.from_default_triple().create_target_machine(
        opt=3, cpu=llvm.get_host_cpu_name(), features=_features(), jit=True, reloc="default", codemodel="jitdefault"
    )
    return machine.emit_object(whole), {name: signature for name, (_, signature) in kernels.items()}


def _drop_the_rest(module: Any) -> None:
    """Leave the kernels alone, which call nothing: machine code without symbols to be found loads everywhere.

    Raises:
        ScanError: a kernel calls something; loops that copy or fill arrays become calls.
    """
    import llvmlite.binding as llvm

    for function in module.functions:
        if not function.is_declaration and not function.name.startswith(_PREFIX):
            function.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    machine = llvm.Target.from_default_triple().create_target_machine()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    called = [f.name for f in module.functions if f.is_declaration]
    outside = [
        n for n in called if not n.startswith("llvm.") or n.startswith(("llvm.memset", "llvm.memcpy", "llvm.memmove"))
    ]
    if outside:
        raise ScanError(f"compiled kernels call {', '.join(outside)}")


def _features() -> str:
    import llvmlite.binding as llvm

    return str(llvm.get_host_cpu_features().flatten())


def _keep(code: bytes, signatures: Mapping[str, str]) -> None:
    """Write the file; where no folder takes it, the next process compiles again."""
    header = json.dumps({"signatures": signatures, "features": _features()}).encode()
    body = len(header).to_bytes(8, "little") + header + code
    for folder in _folders():
        with suppress(OSError, UnsafeFileError), private_folder(folder) as private:
            with private.replace(_file_name(), mode=0o644) as file:
                file.write(hashlib.sha256(body).digest() + body)
            return


def _unpacked(data: bytes) -> tuple[bytes, dict[str, str]] | None:
    """Code and signatures of a file; None if it is damaged or was made for another processor."""
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        return None
    end = 8 + int.from_bytes(body[:8], "little")
    header = json.loads(body[8:end])
    return (body[end:], header["signatures"]) if header["features"] == _features() else None


def _kept() -> bytes | None:
    """What an earlier process has left; the file that is judged is the one that is read."""
    name = _file_name()
    for folder in _folders():
        if (found := trusted_content(folder / name)) is not None:
            return found
    with suppress(OSError):  # as trustworthy as the source beside it; also out of a zip
        return pkgutil.get_data("scan_core.native", f"{_SHIPPED}/{name}")
    return None


def _file_name() -> str:
    """Differs for other kernels, another LLVM and another kind of processor."""
    import llvmlite

    sources = (pkgutil.get_data("scan_core.native", f"{name}.py") or b"" for name in _SOURCES)
    version = f"{llvmlite.__version__} {platform.machine()} {_processor()}"
    digest = hashlib.sha256(b"".join(sources) + version.encode()).hexdigest()
    return f"kernels-{digest[:24]}.bin"


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open() as lines:
            return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        return platform.processor()


def _folders() -> Iterator[Path]:
    """Where Numba keeps its cache, too: a folder of choice, beside the source, or the user's own."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(chosen)
    yield Path(__file__).parent / "__pycache__"
    if (cached := cache_folder()) is not None:
        yield cached
