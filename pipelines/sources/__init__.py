"""Where change events come from: event files, topics of Kafka, and PostgreSQL as a live source (`live.py`).

What the events look like is in `formats/`.
"""
