"""The one system of compiled kernels: declared with a signature, compiled by Numba, kept as machine code in a file.

A unit is the kernels of a module (or, of `nevermore.scan_core.native`, of several). Its file is named by a digest of the source of
every function that its kernels reach, of the values that these read, and of the processor: other code is another file,
so nothing old ever runs. Loading a file takes 0.04 s and needs no Numba; compiling a unit takes seconds, once.
The file is trusted as Python's own `__pycache__` is, so it and its folder must belong to the user or the system and be
writable by nobody else. It holds numbers and machine code, no objects of Python.
"""

import ctypes
import hashlib
import inspect
import json
import logging
import os
import pkgutil
import platform
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from math import prod
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from nevermore.scan_core.io.private_files import UnsafeFileError, cache_folder, private_folder, trusted_content
from nevermore.scan_core.model.errors import ScanError, require_package

Kernel = Callable[..., Any]
"""Takes arrays and numbers as its signature says; releases the GIL. An array that is too short is an IndexError."""

CHECKS = "NEVERMORE_KERNEL_CHECKS"
"""With this environment variable set to 1, kernels check every index: for tests, as it takes up to half more time."""

_log = logging.getLogger(__name__)
_PREFIX = "nevermore_"
_DTYPES = {
    "u8": "u1", "i8": "i1", "u32": "u4", "i32": "i4", "u64": "u8", "i64": "i8", "f64": "f8", "bool": "?",
}  # fmt: skip
_DIGEST_BYTES = 32
_SHIPPED = "shipped"
"""Folder of code that came with the package."""
KEYS = "nevermore.scan_core.native"
"""Name of the unit whose kernels take pointers: those that hash, find and add up, in all modules of this folder."""
_FOUND_BY_CHECK = b"index is out of bounds"
_REFUSED = "an array given to a compiled kernel is too short or points outside of another"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a signature.

    Attributes:
        name: for messages.
        kind: `u8`, `i64`, `bool`, ...; of the values of an array or pointer, or of the number itself.
        dimensions: of an array; 0 for a number and a pointer.
        is_written: whether the kernel writes to the array.
        is_pointer: whether the kernel takes the address of the values alone.
        length: of a pointer, the least number of values, as a sum of products of numbers and parameters.
    """

    name: str
    kind: str
    dimensions: int = 0
    is_written: bool = False
    is_pointer: bool = False
    length: str = ""

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy type of the values in memory."""
        return np.dtype(_DTYPES[self.kind])


class Callee:
    """A function that kernels call. In Python it stands for itself in their source, and cannot be called."""

    def __init__(self, function: Any, *, inline: bool = False, make: Callable[[], Any] | None = None) -> None:
        """Declare; use `callee`, `inlined` and `intrinsic`."""
        self.function = function
        self.__name__ = function.__name__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self._inline = inline
        self._make = make
        self._compiled: Any = None

    def compiled(self) -> Any:
        """The function that Numba calls in its place."""
        if self._compiled is None:
            self._compiled = self._make() if self._make else _dispatcher(self.function, forceinline=self._inline)
        return self._compiled

    def __call__(self, *_: Any) -> Any:
        """Refuse: the code of kernels wraps around at 64 bits and proves its indexes before it runs.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{self.__module__}.{self.__name__} is called by compiled kernels alone")


class ArrayKernel(Callee):
    """A kernel that Python calls with arrays and numbers; its unit is its module."""

    def __init__(self, function: Any, signature: str) -> None:
        """Declare; use `kernel`."""
        super().__init__(function)
        self.signature = _named(function, signature)
        self._bound: Kernel | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Run it.

        Raises:
            TypeError: an argument is not what the signature says.
            IndexError: an array is too short, or points outside of another.
            ScanError: it cannot be compiled here.
        """
        if self._bound is None:
            self._bound = unit_of(self.__module__)[self.__name__]
        return self._bound(*arguments)


def kernel(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """Declare a kernel that Python calls.

    Args:
        signature: kinds of the parameters, separated by spaces: `i64`, `u64`, `bool` for numbers; `u8[]` for an array of
            such values, `u8[][]` for one of two dimensions, `u8[]=` for one that the kernel writes to; contiguous ones.
    """
    return lambda function: _UNITS.setdefault(function.__module__, {}).setdefault(
        function.__name__, ArrayKernel(function, signature)
    )


def callee(function: Callable[..., Any]) -> Any:
    """Declare a function that kernels call."""
    return Callee(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Declare a function that is compiled as a part of its callers: a call costs more than most of what these do."""
    return Callee(function, inline=True)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Declare instructions of LLVM, as `numba.extending.intrinsic` does."""

    def make() -> Any:
        from numba.extending import intrinsic as instructions

        return instructions(function)

    return Callee(function, make=make)


_UNITS: dict[str, dict[str, ArrayKernel]] = {}
"""Kernels that take arrays, by module."""


class Kernels:
    """The kernels of a unit by name; `kernels["find"](hashes, len(hashes), ...)`."""

    def __init__(self, code: bytes, signatures: Mapping[str, str], results: Mapping[str, Sequence[str]]) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self._by_name = {
            name: _bound(name, self._engine.get_function_address(_PREFIX + name), signature, results[name])
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
    """Name within the package and content of this machine's code, to be shipped; compiled if it does not exist."""
    if _kept() is None:
        load_kernels()
    kept = _kept()
    if kept is None:
        raise ScanError("no folder takes the compiled kernels; set NUMBA_CACHE_DIR to one that can be written")
    return f"nevermore/scan_core/native/{_SHIPPED}/{_file_name()}", kept


def load_kernels(unit: str = KEYS) -> Kernels:
    """The kernels of a unit, from the file if there is one for this machine, else compiled and kept for the next process.

    Raises:
        ScanError: there is no file, and no Numba to make it.
    """
    found = _usable(unit)
    if found is None:
        with _compiling(unit):  # of several processes one compiles
            found = _usable(unit)
            if found is None:
                found = _compiled(unit)
                _keep(*found, unit)
    return Kernels(found[0], _signatures_of(unit), found[1])


def unit_of(module: str) -> Kernels:
    """The kernels that a module declares, loaded once per process.

    Raises:
        ScanError: as `load_kernels`.
    """
    with _STATE.lock:
        if module not in _STATE.loaded:
            if module != KEYS and _usable(module) is None and _usable(KEYS) is None:
                load_kernels()  # compiled along with these, as a scan does not compile
            _STATE.loaded[module] = load_kernels(module)
        return _STATE.loaded[module]


def is_loaded(unit: str) -> bool:
    """Whether this process has the kernels of a unit."""
    return unit in _STATE.loaded


def uncompiled(modules: Sequence[str]) -> list[str]:
    """The units for which there is no file yet; all must have been imported."""
    return [module for module in modules if _usable(module) is None]


class _State:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.loaded: dict[str, Kernels] = {}


_STATE = _State()


def _unlock() -> None:
    """In a forked process the thread that held the lock does not exist, and would never release it."""
    _STATE.lock = threading.RLock()


os.register_at_fork(after_in_child=_unlock)


def _bound(name: str, address: int, signature: str, result: Sequence[str]) -> Kernel:
    """A function over machine code.

    Numba's functions take where to put the result and an exception, then the arguments: an array as owner and parent (of
    which it has none), number of values, their size, address, shape and strides.
    """
    parameters = [_parsed(parameter) for parameter in signature.split()]
    places = {parameter.name: place for place, parameter in enumerate(parameters)}
    kinds = [kind for parameter in parameters for kind in _passed_kinds(parameter)]
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *kinds)(address)
    passed = [_passing(name, parameter, places) for parameter in parameters]
    fields = [(f"field{place}", _RESULTS[kind]) for place, kind in enumerate(result)]
    shape = type("Result", (ctypes.Structure,), {"_fields_": fields or [("nothing", ctypes.c_void_p)]})

    def call(*arguments: Any) -> Any:
        if len(arguments) != len(parameters):
            raise TypeError(f"the kernel {name} takes {len(parameters)} arguments, not {len(arguments)}")
        given: list[Any] = []
        for argument, take in zip(arguments, passed, strict=True):
            given += take(argument, arguments)
        found, refusal = shape(), ctypes.c_void_p()
        status = function(ctypes.addressof(found), ctypes.addressof(refusal), *given)
        if status not in _GOOD:
            raise IndexError(_message(refusal))
        values = tuple(getattr(found, field) for field, _ in fields)
        return values if len(values) > 1 else values[0] if values else None

    return call


_GOOD = (0, -2)
"""What a function of Numba answers that has a result, and one whose result is None."""
_RESULTS = {"i64": ctypes.c_int64, "u64": ctypes.c_uint64, "bool": ctypes.c_bool}
_LIMITS = {"u64": (-(2**63), 2**64), "i64": (-(2**63), 2**63), "bool": (0, 2)}


def _passed_kinds(parameter: Parameter) -> list[Any]:
    if parameter.dimensions:
        return [
            *[ctypes.c_void_p] * 2,
            *[ctypes.c_int64] * 2,
            ctypes.c_void_p,
            *[ctypes.c_int64] * 2 * parameter.dimensions,
        ]
    return [ctypes.c_void_p if parameter.is_pointer else _RESULTS[parameter.kind]]


def _passing(name: str, parameter: Parameter, places: Mapping[str, int]) -> Callable[[Any, Sequence[Any]], list[Any]]:
    """How one argument is verified and passed."""
    if parameter.dimensions:
        return _array_taker(name, parameter)
    if parameter.is_pointer:
        return _address_taker(name, parameter, _length(parameter.length, places))
    lowest, end = _LIMITS[parameter.kind]

    def number(argument: Any, _: Sequence[Any]) -> list[Any]:
        value = int(argument)
        if not lowest <= value < end:
            raise TypeError(f"{parameter.name} of the kernel {name} is a number of kind {parameter.kind}, not {value}")
        return [value]

    return number


def _array_taker(name: str, parameter: Parameter) -> Callable[[Any, Sequence[Any]], list[Any]]:
    """Called for each array of each call: what is the same in all calls is looked up once, here."""
    dtype, dimensions, is_written = parameter.dtype, parameter.dimensions, parameter.is_written

    def take(array: Any, _: Sequence[Any]) -> list[Any]:
        given, shape, flags = array.dtype, array.shape, array.flags
        if (given is not dtype and given != dtype) or len(shape) != dimensions or not flags.c_contiguous:
            raise TypeError(
                f"{parameter.name} of the kernel {name} are contiguous {dtype} values in {dimensions} dimensions, not "
                f"{given} in {len(shape)}"
            )
        if is_written and not flags.behaved:
            raise TypeError(f"{parameter.name} of the kernel {name} is written to, but the array given is read-only")
        return [None, None, array.size, array.itemsize, _place(array), *shape, *array.strides]

    return take


def _address_taker(
    name: str, parameter: Parameter, least: Callable[[Sequence[Any]], int]
) -> Callable[[Any, Sequence[Any]], list[Any]]:
    dtype = parameter.dtype

    def take(array: Any, arguments: Sequence[Any]) -> list[Any]:
        given = array.dtype
        if (given is not dtype and given != dtype) or not array.flags.c_contiguous:
            raise TypeError(f"{parameter.name} of the kernel {name} are contiguous {dtype} values, not {given}")
        if array.size < (wanted := least(arguments)):
            raise IndexError(f"{parameter.name} of the kernel {name} are {wanted} values at least, not {array.size}")
        return [_place(array)]

    return take


def _place(array: Any) -> int:
    """The address of the values; `array.ctypes.data` takes twice as long."""
    return int(array.__array_interface__["data"][0])


def _message(refusal: ctypes.c_void_p) -> str:
    """The message of a kernel's exception: a constant in the code, in the form in which Numba writes exceptions."""
    if refusal.value:
        data, size = _Refusal.from_address(refusal.value).data, _Refusal.from_address(refusal.value).size
        if data and _FOUND_BY_CHECK in ctypes.string_at(data, size):
            return _FOUND_BY_CHECK.decode()
    return _REFUSED


class _Refusal(ctypes.Structure):
    """The beginning of what Numba's functions say about an exception."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_int32))


def _named(function: Callable[..., Any], kinds: str) -> str:
    """A signature with the names of the parameters: `name:kind`, separated by spaces."""
    return " ".join(map(":".join, zip(inspect.signature(function).parameters, kinds.split(), strict=True)))


def _parsed(parameter: str) -> Parameter:
    """One parameter of a signature with names."""
    name, kind = parameter.split(":")
    is_written = kind.endswith("=")
    kind, has_length, length = kind.rstrip("=").partition("[")
    if kind.endswith("*"):
        return Parameter(name, kind[:-1], is_pointer=True, length=length.rstrip("]"))
    return Parameter(name, kind, length.count("]") if has_length else 0, is_written)


def _length(length: str, places: Mapping[str, int]) -> Callable[[Sequence[Any]], int]:
    """How many values an array needs, out of the arguments of a call; `length` is a sum of products."""
    terms = [[places.get(factor, factor) for factor in term.split("*")] for term in length.split("+")]

    def least(arguments: Sequence[Any]) -> int:
        return sum(prod(int(arguments[f]) if isinstance(f, int) else int(f) for f in term) for term in terms)

    return least


_POINTER_KERNELS: dict[str, tuple[Callable[..., Any], str]] = {}
"""Kernels that take pointers, by name."""


def declare_pointer_kernels(table: Mapping[str, tuple[Callable[..., Any], str]]) -> None:
    """Add kernels that take pointers to the unit `KEYS`: by name, the function and the kinds of its parameters."""
    _POINTER_KERNELS.update((name, (function, _named(function, kinds))) for name, (function, kinds) in table.items())


def signatures() -> dict[str, tuple[Callable[..., Any], str]]:
    """The function and the parameters, as `name:kind[length]`, of each kernel that takes pointers, by name."""
    return dict(_POINTER_KERNELS)


def _declared(unit: str) -> dict[str, tuple[Callable[..., Any], str]]:
    if unit == KEYS:
        return signatures()
    return {name: (own.function, own.signature) for name, own in sorted(_UNITS[unit].items())}


def _signatures_of(unit: str) -> dict[str, str]:
    return {name: signature for name, (_, signature) in _declared(unit).items()}


def _compiled(unit: str) -> tuple[bytes, dict[str, list[str]]]:
    """Machine code, and the kinds of what each kernel returns."""
    if find_spec("numba") is None:
        raise ScanError(f"the compiled kernels of {unit} must be made here, but Numba is not installed: install numba")
    _announce()
    import llvmlite.binding as llvm
    from numba.core import config
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import cpu_target

    kernels, results, whole = _declared(unit), {}, None
    with global_compiler_lock:
        _ = cpu_target.target_context  # made as all other users of Numba in this process expect it
        before = config.OPT
        # Numba would optimise each function with all that it calls, again and again; we do so once, at the end
        config.OPT = type(before)(0)
        try:
            for name, (function, signature) in kernels.items():
                part, results[name] = _intermediate(name, function, signature)
                if whole is None:
                    whole = part
                else:
                    whole.link_in(part)
        finally:
            config.OPT = before
    machine = llvm.Target.from_default_triple().create_target_machine(
        opt=3, cpu=llvm.get_host_cpu_name(), features=_features(), jit=True, reloc="default", codemodel="jitdefault"
    )
    _optimise(whole, machine)
    return machine.emit_object(whole), results


@cache
def _announce() -> None:
    """Say once why this process takes longer than the next."""
    _log.warning(
        "Compiling code for this machine, once after an installation or upgrade; this takes up to half a minute."
    )


def _intermediate(name: str, function: Callable[..., Any], signature: str) -> tuple[Any, list[str]]:
    """A module of LLVM that has one kernel, and the kinds of what it returns."""
    import llvmlite.binding as llvm
    from numba import types

    parameters = [_parsed(parameter) for parameter in signature.split()]
    dispatcher = _dispatcher(function)
    taken = tuple(_type_of(parameter) for parameter in parameters)
    # a kernel that takes pointers always returns a 64-bit number
    dispatcher.compile(types.uint64(*taken) if any(p.is_pointer for p in parameters) else taken)
    (result,) = dispatcher.overloads.values()
    returned = result.signature.return_type
    parts = [] if returned == types.none else list(returned) if isinstance(returned, types.BaseTuple) else [returned]
    kinds = {types.int64: "i64", types.uint64: "u64", types.boolean: "bool"}
    part = llvm.parse_assembly(result.library.get_llvm_str())
    part.get_function(result.fndesc.mangled_name).name = _PREFIX + name
    return part, [kinds[types.unliteral(part_of)] for part_of in parts]


def _type_of(parameter: Parameter) -> Any:
    from numba import types

    names = {"u": "uint", "i": "int", "f": "float"}
    kind = types.boolean if parameter.kind == "bool" else getattr(types, names[parameter.kind[0]] + parameter.kind[1:])
    if parameter.is_pointer:
        return types.CPointer(kind)
    if not parameter.dimensions:
        return kind
    # read-only data may have any alignment, such as bytes of a file that are read as numbers
    return types.Array(kind, parameter.dimensions, "C", readonly=not parameter.is_written, aligned=parameter.is_written)


def _dispatcher(function: Any, **options: Any) -> Any:
    """Numba's own object of a function, in which callees are Numba's, too.

    Without reference counting (`_nrt`) nothing can be allocated, and passing an array on costs no atomic operation.
    """
    import numba

    return numba.njit(
        nogil=True, boundscheck=_is_checked(), _nrt=False, error_model="numpy", pipeline_class=_pipeline(), **options
    )(_linked(function, Callee.compiled))


def _linked(function: Any, link: Callable[[Callee], Any]) -> Any:
    """The same function, which calls what `link` makes of its callees."""
    code: CodeType = function.__code__
    names = {name: function.__globals__[name] for name in _names_in(code) if name in function.__globals__}
    known = {name: link(own) for name, own in names.items() if isinstance(own, Callee)}
    return FunctionType(code, function.__globals__ | known, function.__name__, function.__defaults__)


@cache
def plain_kernel(name: str) -> Kernel:
    """A kernel that takes pointers, run by Python: of those alone whose numbers are all signed."""

    def linked(own: Callee) -> Any:
        return _linked(own.function, linked)

    function = _linked(_POINTER_KERNELS[name][0], linked)
    return lambda *arguments: function(*[a.data if isinstance(a, np.ndarray) else a for a in arguments])


@cache
def _pipeline() -> Any:
    """Numba's steps up to LLVM's intermediate code: machine code of each function alone would take half of the time."""
    from numba.core import codegen, compiler

    class Unadded(codegen.JITCPUCodegen):  # type: ignore[misc]
        def _add_module(self, module: Any) -> None:
            """Do nothing: no code is run."""

        def set_env(self, name: str, environment: Any) -> None:
            """Do nothing: the code uses no Python objects."""

    class Intermediate(codegen.AOTCodeLibrary):  # type: ignore[misc]
        def get_pointer_to_function(self, _name: str) -> int:
            self._ensure_finalized()
            return 0

    own = Unadded("nevermore")

    class Pipeline(compiler.Compiler):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            flags = self.state.flags
            flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
            self.state.library = Intermediate(own, "nevermore")

    return Pipeline


def _is_checked() -> bool:
    return os.environ.get(CHECKS) == "1"


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _optimise(module: Any, machine: Any) -> None:
    """Leave the kernels alone, optimised, which call nothing but what LLVM makes of loops that copy or fill arrays.

    Raises:
        ScanError: a kernel calls something else.
    """
    import llvmlite.binding as llvm

    for function in module.functions:
        if not function.is_declaration and not function.name.startswith(_PREFIX):
            function.linkage = "internal"
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    first = llvm.create_new_module_pass_manager()
    first.add_global_dead_code_eliminate_pass()
    first.run(module, builder)
    builder.getModulePassManager().run(module, builder)
    first.run(module, builder)
    called = [f.name for f in module.functions if f.is_declaration]
    outside = [name for name in called if not name.startswith("llvm.")]
    if outside:
        raise ScanError(f"compiled kernels call {', '.join(outside)}")


def _features() -> str:
    import llvmlite.binding as llvm

    return str(llvm.get_host_cpu_features().flatten())


def _keep(code: bytes, results: Mapping[str, Sequence[str]], unit: str = KEYS) -> None:
    """Write the file; where no folder takes it, the next process compiles again."""
    header = json.dumps({"results": results, "features": _features(), "made by": _makers()}).encode()
    body = len(header).to_bytes(8, "little") + header + code
    for folder in _folders():
        try:
            with private_folder(folder) as private, private.replace(_file_name(unit), mode=0o644) as file:
                file.write(hashlib.sha256(body).digest() + body)
        except (OSError, UnsafeFileError) as error:
            if str(folder) == os.environ.get("NUMBA_CACHE_DIR"):
                _log.warning("NUMBA_CACHE_DIR is not used: %s", error)
        else:
            return
    _log.warning(
        "no folder takes the compiled kernels: each process compiles them. Set NUMBA_CACHE_DIR to one of your own"
    )


@contextmanager
def _compiling(unit: str) -> Iterator[None]:
    """Hold the lock of a unit, where a folder takes one."""
    for folder in _folders():
        with suppress(OSError, UnsafeFileError):
            private = private_folder(folder)
            break
    else:
        yield
        return
    with private, private.locked(f"{_file_name(unit)}.lock"):
        yield


def _unpacked(data: bytes) -> tuple[bytes, dict[str, list[str]]] | None:
    """Code and results of a file; None if it is damaged, or was made for another processor or by another Numba."""
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        return None
    end = 8 + int.from_bytes(body[:8], "little")
    header = json.loads(body[8:end])
    if header["features"] != _features() or (find_spec("numba") is not None and header["made by"] != _makers()):
        return None
    return body[end:], header["results"]


@cache
def _makers() -> dict[str, str]:
    """The inputs of machine code besides the source; workers without Numba run the code of their driver."""
    return {name: version(name) for name in ("numba", "numpy")} if find_spec("numba") is not None else {}


def _usable(unit: str) -> tuple[bytes, dict[str, list[str]]] | None:
    kept = _kept(unit)
    return None if kept is None else _unpacked(kept)


def _kept(unit: str = KEYS) -> bytes | None:
    """The machine code that an earlier process stored; the file that is checked is the one that is read."""
    name = _file_name(unit)
    for folder in _folders():
        if (found := trusted_content(folder / name)) is not None:
            return found
    with suppress(OSError):  # as trustworthy as the source next to it; also from a zip
        return pkgutil.get_data("nevermore.scan_core.native", f"{_SHIPPED}/{name}")
    return None


def _file_name(unit: str = KEYS) -> str:
    """Differs for other kernels, another LLVM, Python and kind of processor."""
    llvmlite = require_package("llvmlite", "decoding change events", "nevermore-iceberg[fast]")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    own = f"{llvmlite.__version__} {python} {platform.machine()} {_processor()} {_is_checked()} {_source_digest(unit)}"
    return f"kernels-{hashlib.sha256(own.encode()).hexdigest()[:24]}.bin"


@cache
def _source_digest(unit: str) -> str:
    """Digest of the source of all modules whose functions the kernels reach, of the values that they read, and of this module."""
    modules, values = {__name__}, []
    waiting: list[Any] = []
    for name, (function, signature) in sorted(_declared(unit).items()):
        values.append(f"{name}({signature})")
        waiting.append(function)
    reached = set()
    while waiting:
        function = waiting.pop()
        if function in reached:
            continue
        reached.add(function)
        modules.add(function.__module__)
        for name in sorted(set(_names_in(function.__code__))):
            value = function.__globals__.get(name)
            if isinstance(value, Callee):
                waiting.append(value.function)
            elif isinstance(value, np.ndarray):
                values.append(f"{name} {value.dtype} {hashlib.sha256(value.tobytes()).hexdigest()}")
            elif isinstance(value, bool | int | float | str | bytes | tuple | np.generic):
                values.append(f"{name} {value!r}")
    digest = hashlib.sha256("\n".join(sorted(values)).encode())
    for module in sorted(modules):
        digest.update(_source(module))
    return digest.hexdigest()


def _source(module: str) -> bytes:
    """Source text of an imported module, also of one in a zip."""
    loader = getattr(sys.modules[module], "__loader__", None)
    text = loader.get_source(module) if loader is not None else None
    if text is None:
        raise ScanError(f"the source of {module}, which has compiled kernels, cannot be found")
    return str(text).encode()


@cache
def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open() as lines:
            return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        return platform.processor()


def _folders() -> Iterator[Path]:
    """The configured folder, the one next to the source, or the user's own."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(chosen)
    yield Path(__file__).parent / "__pycache__"
    if (cached := cache_folder()) is not None:
        yield cached
