"""Operations on existing tables: indexes, adoption, replay, resync and status."""
