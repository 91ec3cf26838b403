"""What change events look like."""
