"""Runs kernels on random arguments in arrays between protected pages, in a process that may die of it.

Prints one line per case: what was done, and a digest of the results. With NEVERMORE_KERNEL_CHECKS=1 the kernels are compiled
with a check of every index, which must find nothing: an array that is too short is for the kernel itself to refuse.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from nevermore.scan_core.native import compiled, machine_code
from nevermore.scan_core.native.machine_code import signatures
from tests.kernels import array_cases, pointer_cases
from tests.kernels.array_cases import Arguments, Random
from tests.kernels.found import declared
from tests.kernels.guarded import guarded

IS_CHECKED = bool(os.environ.get(machine_code.CHECKS))
_FOUND_BY_NUMBA = "index is out of bounds"


def outcome(kernel: Callable[..., Any], arguments: Arguments, *, at_end: bool | None) -> str:
    """A digest of result and arrays, or `refused`; `at_end` is None for arrays like any others."""

    def placed(array: Any) -> Any:
        copy = array.copy() if at_end is None else guarded(array, at_end=at_end)
        copy.flags.writeable = array.flags.writeable
        return copy

    own = [placed(a) if isinstance(a, np.ndarray) else a for a in arguments]
    try:
        result = kernel(*own)
    except IndexError as error:
        if _FOUND_BY_NUMBA in str(error):
            return "AN INDEX OUT OF BOUNDS"
        return "refused"
    digest = hashlib.sha256(repr(result if result is None else np.asarray(result).tolist()).encode())
    for array in own:
        if isinstance(array, np.ndarray):
            digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def outcomes(kernel: Callable[..., Any], arguments: Arguments) -> str:
    """What the kernel makes of arrays at any place, which must not matter."""
    found = {outcome(kernel, arguments, at_end=at_end) for at_end in (None, True, False)}
    return found.pop() if len(found) == 1 else "DIFFERS BY THE PLACE OF THE ARRAYS"


def shortened(random: Random, arguments: Arguments, places: Sequence[int] | None = None) -> Arguments:
    """The same with an array that is shorter, where one (of those at `places`) is longer than nothing."""
    among = range(len(arguments)) if places is None else places
    filled = [i for i in among if isinstance(arguments[i], np.ndarray) and arguments[i].size]
    if not filled:
        return arguments
    place = int(random.choice(filled))
    array = arguments[place]
    axis = int(random.integers(0, array.ndim))
    shape = list(array.shape)
    shape[axis] -= int(random.integers(1, min(shape[axis], 3) + 1))
    return _with(arguments, place, array[tuple(slice(n) for n in shape)].copy())


def distorted(random: Random, arguments: Arguments) -> Arguments:
    """The same with other values in an array, or another number."""
    place = int(random.integers(0, len(arguments)))
    given = arguments[place]
    if isinstance(given, bool):
        return _with(arguments, place, not given)
    if isinstance(given, int):
        return _with(arguments, place, int(random.choice([-(2**40), -1, 0, 1, 2, given + 1, 2**40])))
    if not isinstance(given, np.ndarray) or not given.size:
        return arguments
    copy = given.copy()
    for _ in range(random.integers(1, 4)):
        at = int(random.integers(0, copy.size))
        if copy.dtype == np.bool_:
            copy.flat[at] = random.integers(0, 2)
        else:
            limits = np.iinfo(copy.dtype)
            some = [limits.min, limits.max, 0, 1, 2, max(limits.min, -1), min(limits.max, copy.size)]
            copy.flat[at] = some[int(random.integers(0, len(some)))]
    return _with(arguments, place, copy)


def _with(arguments: Arguments, place: int, other: Any) -> Arguments:
    changed = list(arguments)
    if isinstance(other, np.ndarray):
        other.flags.writeable = arguments[place].flags.writeable
    changed[place] = other
    return changed


def check_arrays(name: str, seeds: range) -> None:
    """A kernel that takes arrays: as they should be, shorter, and with values that point anywhere."""
    kernel, make = declared()[name], array_cases.CASES[name]
    for seed in seeds:
        random = np.random.default_rng(seed)
        arguments = make(random)
        say(name, seed, "as it should be", lambda a=arguments: outcomes(kernel, a))
        for number in range(4):
            shorter, other = shortened(random, arguments), distorted(random, arguments)
            say(name, seed, f"shorter {number}", lambda a=shorter: outcomes(kernel, a))
            say(name, seed, f"distorted {number}", lambda a=other: outcomes(kernel, a))
            both = distorted(random, shorter)
            say(name, seed, f"shorter and distorted {number}", lambda a=both: outcomes(kernel, a))


def check_pointers(name: str, seeds: range) -> None:
    """A kernel that takes pointers: arrays as they should be, and shorter, which the call refuses."""
    kernel, make = _checked(name) if IS_CHECKED else compiled.load()[name], pointer_cases.CASES[name]
    for seed in seeds:
        random = np.random.default_rng(seed)
        arguments = make(random)
        say(name, seed, "as it should be", lambda a=arguments: outcomes(kernel, a))
        if not IS_CHECKED:
            exact = _exact(name, arguments)
            for number in range(4 if exact else 0):
                shorter = shortened(random, arguments, exact)
                say(name, seed, f"shorter {number}", lambda a=shorter: _refusal(outcomes(kernel, a)))


def _exact(name: str, arguments: Arguments) -> list[int]:
    """Arrays of which the signature says as many values as there are; of others the caller proves the length."""
    parameters = [machine_code._parsed(parameter) for parameter in signatures()[name][1].split()]
    places = {parameter.name: place for place, parameter in enumerate(parameters)}
    return [
        place
        for place, parameter in enumerate(parameters)
        if parameter.is_pointer
        and arguments[place].size == machine_code._length(parameter.length, places)(arguments) > 0
    ]


def _refusal(found: str) -> str:
    return found if found == "refused" else "AN ARRAY THAT IS TOO SHORT IS TAKEN"


def _checked(name: str) -> Callable[..., Any]:
    """The kernel over arrays in place of pointers, with every index checked."""
    pointers = [p.partition(":")[2].partition("[")[0].endswith("*") for p in signatures()[name][1].split()]

    def call(*arguments: Any) -> int:
        passed = [
            (a if a.flags.writeable else a.copy()).reshape(-1) if is_pointer else int(a)
            for a, is_pointer in zip(arguments, pointers, strict=True)
        ]
        return int(_over_arrays()[name](*passed)) % 2**64

    return call


@cache
def _over_arrays() -> machine_code.Kernels:
    def kinds(signature: str) -> str:
        kept = [parameter.partition(":")[2].partition("[")[0] for parameter in signature.split()]
        return " ".join(kind.replace("*", "[]=") for kind in kept)

    machine_code._UNITS[__name__] = {
        name: machine_code.ArrayKernel(function, kinds(signature))
        for name, (function, signature) in signatures().items()
    }
    return machine_code.load_kernels(__name__)


def say(name: str, seed: int, what: str, run: Callable[[], str]) -> None:
    """Announce the case before it runs: the last line tells what the process died of."""
    sys.stdout.write(f"{name} {seed} {what}: ")
    sys.stdout.flush()
    sys.stdout.write(run() + "\n")


def main() -> None:
    first, last = int(sys.argv[1]), int(sys.argv[2])
    wanted = sys.argv[3:]
    for cases, check in ((array_cases.CASES, check_arrays), (pointer_cases.CASES, check_pointers)):
        for name in cases:
            if not wanted or name in wanted:
                check(name, range(first, last))


if __name__ == "__main__":
    main()
