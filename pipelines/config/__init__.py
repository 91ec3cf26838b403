"""The configuration: nevermore.yaml, its values and its sections."""
