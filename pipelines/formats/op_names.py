"""The words by which feeds name operations, to the letters of the change schema."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def op_codes(words: pa.StringArray, letters: Mapping[str, str]) -> NDArray[np.uint8]:
    """The ASCII code of each word's letter; 0 for NULL and for words that `letters` lacks."""
    encoded = words.dictionary_encode(null_encoding="encode")
    known = [letters.get(word, "\0") if word is not None else "\0" for word in encoded.dictionary.to_pylist()]
    codes = np.array([ord(letter) for letter in known] or [0], np.uint8)
    return codes[np.asarray(encoded.indices)] if len(words) else np.zeros(0, np.uint8)
