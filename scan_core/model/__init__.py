"""Facts that travel between driver and workers: schemas, snapshots, options, metrics, errors. Nothing here does I/O."""
