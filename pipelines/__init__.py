"""What moves data: change events to change logs, mirrors and published tables."""
