"""MariaDB as a source: a load of what exists, joined to the row events of its binary log."""
