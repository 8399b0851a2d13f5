"""Batches with the same rows have the same digest, however they are cut, and batches with other rows have another."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from l0gc.integrations.spark.stage import digest_of

Row = tuple[bytes, bytes | None]


def of(rows: Sequence[Row], topic: str = "events") -> int:
    values, keys = zip(*rows, strict=True) if rows else ((), ())
    return digest_of(topic, pa.array(values, pa.binary()), pa.array(keys, pa.binary()))


def some(chance: random.Random, count: int) -> list[Row]:
    return [
        (
            chance.randbytes(chance.choice([0, 1, 7, 8, 9, 40])),
            chance.choice([None, b"", b"k", chance.randbytes(9)]),
        )
        for _ in range(count)
    ]


def test_part_digests_add_up_in_any_order_and_cut() -> None:
    chance = random.Random(1)
    rows = [*some(chance, 300), (chance.randbytes(1000), None)]
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
        [(b"ac", b"k"), (b"cd", None)],
        [(b"ab", b"l"), (b"cd", None)],
        [(b"ab", b"k"), (b"cd", b"")],
        [(b"ab", None), (b"cd", b"k")],  # the keys are swapped
        [(b"abk", b""), (b"cd", None)],
        [(b"ab\0", b"k"), (b"cd", None)],
        [(b"ad", b"k"), (b"cb", None)],  # the same number of each byte
        [(b"ab", b"k"), (b"ab", b"k")],
        [(b"ab", b"k")],
    ],
)
def test_any_other_row_makes_another_digest(other: list[Row]) -> None:
    assert of(other) != of([(b"ab", b"k"), (b"cd", None)])


def test_the_digest_covers_the_topic() -> None:
    assert of([(b"a", None)], "events") != of([(b"a", None)], "event")


def test_one_changed_or_moved_byte_anywhere_makes_another_digest() -> None:
    chance = random.Random(2)
    rows = [(chance.randbytes(24), None) for _ in range(50)]
    seen = {of(rows)}
    for row in range(len(rows)):
        value = rows[row][0]
        for at in range(24):
            changed = bytearray(value)
            changed[at] ^= 1 << chance.randrange(8)
            seen.add(of([*rows[:row], (bytes(changed), None), *rows[row + 1 :]]))
        seen.add(of([*rows[:row], (value[8:] + value[:8], None), *rows[row + 1 :]]))
    assert len(seen) == 1 + 50 * 25


def test_a_null_key_counts_as_none_whatever_its_bytes() -> None:
    offsets, data = np.array([0, 3, 5], np.int32), b"xyzab"
    null = np.packbits([0, 1], bitorder="little")
    keys = pa.BinaryArray.from_buffers(pa.binary(), 2, [pa.py_buffer(x) for x in (null, offsets, data)])
    values = pa.array([b"1", b"2"], pa.binary())
    assert digest_of("events", values, keys) == of([(b"1", None), (b"2", b"ab")])


def test_a_column_that_is_a_slice_counts_as_its_rows() -> None:
    rows: list[Row] = [(b"%d" % n, b"k%d" % n) for n in range(9)]
    values, keys = (pa.array([r[c] for r in rows], pa.binary()).slice(2, 5) for c in (0, 1))
    assert digest_of("events", values, keys) == of(rows[2:7])
