"""PostgreSQL as a live source: a load of its tables in chunks, then their changes from a replication slot."""
