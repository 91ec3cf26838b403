"""Where change events come from: event files, topics of Kafka, and PostgreSQL and MySQL as live sources (`live.py`).

To add one, write a reader here, add its section to `Source` in `config/sources.py` (also listed in `config/tables.py` and
`config/project.py`), and open the reader in `ingest/feeds.py`. What the events look like is in `formats/`.
"""
