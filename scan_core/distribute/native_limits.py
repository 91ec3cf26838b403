"""How far the native reader goes: what it does on the driver, what it leaves to a Spark job, and when it gives up."""

from dataclasses import dataclass, fields

from scan_core.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLimits:
    """Limits of the native reader; none of them changes a result.

    Attributes:
        driver_files: up to so many data files are looked at by the driver, more by a Spark job.
        driver_bytes: stored bytes of the data files that deletes may touch, up to which the driver finds their dead
            rows; more by a Spark job.
        bits_bytes: most memory for the bits of one scan, on the driver and on every executor; a scan that may need
            more is read by the python reader.
        plan_bytes: most memory for bits that are part of the query's plan, which is the fastest way to ask them; more
            are broadcast, and so are those of more than 16 files. 0 broadcasts all.
    """

    driver_files: int = 500
    driver_bytes: int = 4 * 1024**3
    bits_bytes: int = 512 * 1024**2
    plan_bytes: int = 8 * 1024**2

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            if getattr(self, name) < 0:
                raise OptionError(f"{name} must not be negative, not {getattr(self, name)}")
