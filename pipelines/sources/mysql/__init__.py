"""MySQL and MariaDB as live sources: a load of their tables in chunks, then the row events of the binary log."""
