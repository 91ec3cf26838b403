"""Names of the NumPy arrays that functions of all packages exchange."""

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
"""One flag per row. The selection of rows that wraps such an array is `scan_core.rows.selection.Mask`."""
Rows = NDArray[np.int64]
"""Row numbers."""
