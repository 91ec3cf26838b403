"""Where change events come from."""
