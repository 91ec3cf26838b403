"""The driver half: from a scan and a snapshot to splits."""
