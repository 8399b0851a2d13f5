"""Human-readable numbers have one form each."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from l0gc.formatting import Outcome, count, dollars, dollars_month, epochs, size, span
from l0gc.streamlog.topics import AdvancedEpoch


def test_one_epoch_is_not_a_range() -> None:
    assert (epochs(7, 7), epochs(7, 9)) == ("epoch 7", "epochs 7 to 9")


def test_numbers_are_formatted_in_their_largest_unit() -> None:
    assert [size(n) for n in (0, 1023, 1024, 5 << 30, 3000 << 40)] == [
        "0 B", "1023 B", "1.0 KiB", "5.0 GiB", "3,000.0 TiB",
    ]  # fmt: skip
    assert [span(s * 1000) for s in (-5, 119.9, 120, 7199, 7200, 172_799, 172_800)] == [
        "0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d",
    ]  # fmt: skip
    assert [count(1, "object"), count(1234, "object"), count(0, "entry", "entries")] == [
        "1 object", "1,234 objects", "0 entries",
    ]  # fmt: skip
    assert [dollars(d) for d in (0, 0.004, 0.005, 1234.5)] == ["$0.00", "under $0.01", "$0.01", "$1,234.50"]
    assert dollars_month(2 << 30, 0.5) == 1.0


def test_json_results_omit_hidden_and_unrequested_fields() -> None:
    class Found(msgspec.Struct, Outcome):
        hidden: ClassVar[frozenset[str]] = frozenset({"evidence"})

        number: int
        evidence: object

    assert Found(1, object()).to_json() == {"number": 1}
    assert AdvancedEpoch(7).to_json() == {"epoch": 7}
    assert AdvancedEpoch(7, []).to_json() == {"epoch": 7, "closed": []}
