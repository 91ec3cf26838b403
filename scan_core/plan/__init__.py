"""From scan and snapshot to splits."""
