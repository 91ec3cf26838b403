"""`functools.cached_property` without the lock of Python 3.11, which all objects of a class share.

While one thread computed a value, such as the deletes of a file, all others waited that needed it of another object, and a
lock that was taken meanwhile could make them wait for ever. Since 3.12 there is none: two threads that ask the same object at
the same time may both compute the value, and one of them is kept.
"""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:
    import functools

    class cached_property(functools.cached_property):  # noqa: N801  the name of the standard library
        """A property that is computed once for each object."""

        def __get__(self, instance: object, owner: type | None = None) -> object:
            """The value, which from then on is found in the object itself."""
            if instance is None:
                return self
            found = instance.__dict__[self.attrname] = self.func(instance)
            return found


__all__ = ["cached_property"]
