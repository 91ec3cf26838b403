from concurrent.futures import ThreadPoolExecutor

from nevermore.scan_core.io.cache import BoundedCache


def test_what_was_used_least_recently_goes_when_bytes_do_not_suffice() -> None:
    cache: BoundedCache[str, bytes] = BoundedCache(len)
    for key in "abc":
        cache.get(key, lambda: bytes(40), 100)
    assert (len(cache), cache.size) == (2, 80)
    assert cache.get("b", lambda: b"made again", 100) == bytes(40)
    cache.get("d", lambda: bytes(50), 100)
    assert cache.get("c", lambda: b"made again", 100) == b"made again"
    assert cache.get("b", lambda: b"made again", 100) == bytes(40)


def test_what_is_put_in_is_found_until_others_need_its_place() -> None:
    cache: BoundedCache[str, bytes] = BoundedCache(len)
    for key in "ab":
        assert cache.put(key, key.encode() * 40, 100) == key.encode() * 40
    assert cache.find("a") == b"a" * 40
    cache.put("c", bytes(40), 100)
    assert (cache.find("b"), cache.find("a")) == (None, b"a" * 40)


def test_a_value_in_place_of_another_counts_once() -> None:
    cache: BoundedCache[str, bytes] = BoundedCache(len)
    for num_bytes in (60, 30):
        cache.put("a", bytes(num_bytes), 100)
    assert (len(cache), cache.size) == (1, 30)


def test_a_value_that_alone_is_too_large_is_refused_and_drives_no_other_out() -> None:
    cache: BoundedCache[str, bytes] = BoundedCache(len)
    for key, num_bytes in (("a", 40), ("b", 40), ("b", 101)):
        cache.put(key, bytes(num_bytes), 100)
    assert (cache.find("a"), cache.find("b"), cache.size) == (bytes(40), None, 40)


def test_values_of_no_stated_size_are_counted() -> None:
    cache: BoundedCache[int, str] = BoundedCache()
    for key in range(5):
        cache.put(key, "value", 2)
    assert [key for key in range(5) if cache.find(key)] == [3, 4]


def test_newest_value_that_was_asked_for_stays_even_if_it_alone_is_too_large() -> None:
    cache: BoundedCache[int, bytes] = BoundedCache(len)
    cache.get(1, lambda: bytes(10), 100)
    cache.get(2, lambda: bytes(1000), 100)
    assert (len(cache), cache.size) == (1, 1000)
    assert cache.get(2, lambda: b"made again", 100) == bytes(1000)
    cache.clear()
    assert (len(cache), cache.size) == (0, 0)


def test_threads_that_ask_together_get_one_value() -> None:
    cache: BoundedCache[int, list[int]] = BoundedCache(len)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: cache.get(1, lambda: [1], 100), range(100)))
    assert all(one is found[0] for one in found)
