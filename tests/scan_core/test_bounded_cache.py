from concurrent.futures import ThreadPoolExecutor

from scan_core.bounded_cache import BoundedCache


def test_what_was_used_least_recently_goes_when_bytes_do_not_suffice() -> None:
    cache: BoundedCache[str, bytes] = BoundedCache(len)
    for key in "abc":
        cache.get(key, lambda: bytes(40), 100)
    assert (len(cache), cache.num_bytes) == (2, 80)
    assert cache.get("b", lambda: b"made again", 100) == bytes(40)
    cache.get("d", lambda: bytes(50), 100)
    assert cache.get("c", lambda: b"made again", 100) == b"made again"
    assert cache.get("b", lambda: b"made again", 100) == bytes(40)


def test_newest_value_stays_even_if_it_alone_is_too_large() -> None:
    cache: BoundedCache[int, bytes] = BoundedCache(len)
    cache.get(1, lambda: bytes(10), 100)
    cache.get(2, lambda: bytes(1000), 100)
    assert (len(cache), cache.num_bytes) == (1, 1000)
    assert cache.get(2, lambda: b"made again", 100) == bytes(1000)
    cache.clear()
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_threads_that_ask_together_get_one_value() -> None:
    cache: BoundedCache[int, list[int]] = BoundedCache(len)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: cache.get(1, lambda: [1], 100), range(100)))
    assert all(one is found[0] for one in found)
