"""Rows of small mirrors."""

from typing import Any

import pyarrow as pa

COLUMNS = {"id": pa.int64(), "name": pa.string()}


def row(key: int, name: str | None = "a", **more: Any) -> dict[str, Any]:
    return {"id": key, "name": name, **more}
