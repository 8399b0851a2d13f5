"""The digest of a batch's rows: the same for the same rows, however they are cut, and another for any others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from l0gc.integrations.spark.stage import digest_of
from l0gc.streamlog.ingest.headers_and_times import NO_TIME, Headers, headers_column

Row = tuple[bytes, bytes | None, int]


def of(rows: Sequence[Row], topic: str = "events") -> int:
    values, keys, named = zip(*rows, strict=True) if rows else ((), (), ())
    return digest_of(topic, values, keys, np.array(named, np.int64))


def some(chance: random.Random, count: int) -> list[Row]:
    return [
        (
            chance.randbytes(chance.choice([0, 1, 7, 8, 9, 40])),
            chance.choice([None, b"", b"k", chance.randbytes(9)]),
            chance.choice([-1, -1, 0, 3]),
        )
        for _ in range(count)
    ]


def test_the_digests_of_parts_add_up_to_that_of_the_whole_in_any_order_and_cut() -> None:
    chance = random.Random(1)
    rows = [*some(chance, 300), (chance.randbytes(1000), None, -1)]
    whole = of(rows)
    for _ in range(20):
        chance.shuffle(rows)
        cuts = [0, *sorted(chance.sample(range(len(rows)), 5)), len(rows)]
        parts = [rows[a:b] for a, b in pairwise(cuts)]
        assert sum(map(of, parts)) % (1 << 64) == whole
    assert of([]) == 0


@pytest.mark.parametrize(
    "other",
    [
        [(b"ac", b"k", -1), (b"cd", None, 2)],
        [(b"ab", b"l", -1), (b"cd", None, 2)],
        [(b"ab", b"k", 0), (b"cd", None, 2)],
        [(b"ab", b"k", -1), (b"cd", b"", 2)],
        [(b"ab", None, -1), (b"cd", b"k", 2)],  # keys change places
        [(b"abk", b"", -1), (b"cd", None, 2)],
        [(b"ab\0", b"k", -1), (b"cd", None, 2)],
        [(b"ad", b"k", -1), (b"cb", None, 2)],  # as many of each byte
        [(b"ab", b"k", -1), (b"ab", b"k", -1)],
        [(b"ab", b"k", -1)],
    ],
)
def test_any_other_row_makes_another_digest(other: list[Row]) -> None:
    assert of(other) != of([(b"ab", b"k", -1), (b"cd", None, 2)])


def test_the_digest_covers_the_topic() -> None:
    assert of([(b"a", None, -1)], "events") != of([(b"a", None, -1)], "event")


def test_one_changed_or_moved_byte_anywhere_makes_another_digest() -> None:
    chance = random.Random(2)
    rows = [(chance.randbytes(24), None, -1) for _ in range(50)]
    seen = {of(rows)}
    for row in range(len(rows)):
        value = rows[row][0]
        for at in range(24):
            changed = bytearray(value)
            changed[at] ^= 1 << chance.randrange(8)
            seen.add(of([*rows[:row], (bytes(changed), None, -1), *rows[row + 1 :]]))
        seen.add(of([*rows[:row], (value[8:] + value[:8], None, -1), *rows[row + 1 :]]))
    assert len(seen) == 1 + 50 * 25


DIGEST = 11133628486272067867
"""Of the rows below, without times and headers."""


def with_more(times: list[int] | None, headers: list[Headers] | None) -> int:
    return digest_of(
        "events",
        [b"ab", b"", b"0123456789", b"x"],
        [b"k", None, b"", b"12345678"],
        np.array([-1, 0, 3, -1]),
        None if times is None else np.array(times),
        None if headers is None else headers_column(headers),
    )


def test_the_digest_of_rows_is_the_same_in_every_version_and_without_columns_that_no_row_fills() -> None:
    """A journal has it, and a replay after an upgrade must be recognised."""
    assert with_more(None, None) == with_more([NO_TIME] * 4, [()] * 4) == DIGEST


def test_the_digest_covers_each_time_and_each_header_with_its_place() -> None:
    a, b, c = ("a", b"1"), ("a", None), ("a", b"")
    all_headers: list[list[Headers]] = [
        [(a, b), (), (), ()],
        [(b, a), (), (), ()],
        [(a, c), (), (), ()],
        [(a,), (b,), (), ()],
        [(), (a, b), (), ()],
        [(("a1", b""), b), (), (), ()],
        [(a, b, b), (), (), ()],
    ]
    all_times = [[0, NO_TIME, NO_TIME, NO_TIME], [NO_TIME, 0, NO_TIME, NO_TIME], [1, NO_TIME, NO_TIME, NO_TIME]]
    found = [with_more(None, h) for h in all_headers] + [with_more(t, None) for t in all_times] + [DIGEST]
    assert len(set(found)) == len(found)
