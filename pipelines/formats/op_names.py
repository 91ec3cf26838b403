"""The columns and words by which feeds name operations, and the letters of the change schema for them."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

SQL_SERVER_OPERATION = "__$operation"
USUAL_OP_COLUMNS = (
    *("op", "_op", "__op", "Op", "OP", "operation", "_operation", "Operation", "OPERATION"),
    *("op_type", "cdc_op", "cdc_operation", "_cdc_operation", "change_type", "_change_type", "_CHANGE_TYPE"),
    *("row_kind", "rowkind", "_row_kind", "METADATA$ACTION", SQL_SERVER_OPERATION),
)
SQL_SERVER_WORDS: Mapping[str, str] = {"1": "d", "2": "c", "3": "b", "4": "u", "5": "u"}
"""The numbers of SQL Server's change tables: 3 is the row before an update, 5 a merge."""
USUAL_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("r", "read", "snapshot", "load", "initial", "bootstrap-insert"), "r"),
    **dict.fromkeys(("c", "i", "create", "created", "insert", "inserted", "ins", "new", "+i"), "c"),
    **dict.fromkeys(("u", "update", "updated", "upd", "upsert", "upserted", "modify", "modified"), "u"),
    **dict.fromkeys(("merge", "replace", "update_postimage", "update_after", "+u"), "u"),
    **dict.fromkeys(("d", "delete", "deleted", "del", "remove", "removed", "-d"), "d"),
    **dict.fromkeys(("t", "truncate", "truncated"), "t"),
    **dict.fromkeys(("-u", "update_preimage", "update_before"), "b"),
}


def op_codes(words: pa.StringArray, letters: Mapping[str, str]) -> NDArray[np.uint8]:
    """The ASCII code of each word's letter; 0 for NULL and for words that `letters` lacks."""
    encoded = words.dictionary_encode(null_encoding="encode")
    known = [letters.get(word, "\0") if word is not None else "\0" for word in encoded.dictionary.to_pylist()]
    codes = np.array([ord(letter) for letter in known] or [0], np.uint8)
    return codes[np.asarray(encoded.indices)] if len(words) else np.zeros(0, np.uint8)
