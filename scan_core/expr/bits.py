"""Bitwise operators on ints and longs."""

from collections.abc import Mapping

import numpy as np

from scan_core.expr.argument_rules import ArgumentError, Arguments
from scan_core.expr.bound import BoundExpr, Call
from scan_core.expr.coercion import INTEGRAL, common_type, name_of
from scan_core.expr.compare import numbers
from scan_core.expr.constants import coerce
from scan_core.expr.kernel_results import Kernel, nulls_of, outcome
from scan_core.expr.vectors import Operand, Vector
from scan_core.schema import Type


def bitwise(name: str, arguments: Arguments) -> BoundExpr:
    """& | ^ ~ in the wider of the operands' types."""
    for index, argument in enumerate(arguments):
        if name_of(argument.type) not in INTEGRAL:
            raise ArgumentError(f"{name} takes ints or longs, not {argument.type}", index)
    type_ = arguments[0].type if len(arguments) == 1 else common_type(arguments[0].type, arguments[1].type)
    assert type_ is not None  # noqa: S101  # int and long have one
    return Call(name, tuple(coerce(a, type_) for a in arguments), type_)


def _binary(operation: np.ufunc) -> Kernel:
    def kernel(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
        left, right = (numbers(a, t) for a, t in zip(arguments, types, strict=True))
        return outcome(operation(left, right), nulls_of(*arguments), None, result, "")

    return kernel


def _invert(arguments: tuple[Operand, ...], types: tuple[Type, ...], result: Type) -> Vector:
    return outcome(np.invert(numbers(arguments[0], types[0])), nulls_of(arguments[0]), None, result, "")


KERNELS: Mapping[str, Kernel] = {
    "&": _binary(np.bitwise_and),
    "|": _binary(np.bitwise_or),
    "^": _binary(np.bitwise_xor),
    "~": _invert,
}
