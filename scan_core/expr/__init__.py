"""The expression side of a scan: text to bound predicates to arrays of truth values."""
