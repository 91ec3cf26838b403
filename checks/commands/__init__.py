"""Commands that prove tables right."""
