"""What driver and workers share: frozen, picklable splits, and their way to tasks."""
