"""Scanning of JSON documents with compiled kernels: where values are, not what they mean."""
