"""Commands that run Dagster."""
