"""Keeping tables small and fast without changing what they say."""
