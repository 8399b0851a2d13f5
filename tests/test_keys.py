"""Keys: each formatted key parses back, and no near miss ever does (hazard 13)."""

from __future__ import annotations

import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.epoch import MAX_EPOCH
from l0gc.errors import UsageError
from l0gc.keys import KeyLayout, L0Key, PartitionId, check_topic_name, journal_log, level_one
from tests.support.tries import tries

DEFAULT = KeyLayout()
LAYOUTS = [
    DEFAULT,
    KeyLayout(shards=7),
    KeyLayout("{shard:01}/{epoch:018}/{uuid}", 10),
    KeyLayout("data/x-{shard:05}/e{epoch:012}-{uuid}.l0", 100_000),
    KeyLayout("a.b/(c)/{shard:02}{epoch:018}{uuid}", 100),
]
NAME = "01234567-89ab-cdef-0123-456789abcdef"
GOOD = f"level_zero/data/042/000000000000000007/{NAME}"

names = st.uuids().map(str)
epochs = st.one_of(st.integers(0, MAX_EPOCH), st.sampled_from([0, 1, MAX_EPOCH]))


def _fits(layout: KeyLayout, epoch: int) -> bool:
    width = re.search(r"\{epoch:0(\d+)\}", layout.template)
    assert width is not None
    return len(str(epoch)) <= int(width[1])


@given(st.sampled_from(LAYOUTS), st.data(), epochs, names)
def test_what_is_formatted_parses_back(layout: KeyLayout, data: st.DataObject, epoch: int, name: str) -> None:
    shard = data.draw(st.integers(0, layout.shards - 1))
    if not _fits(layout, epoch):
        epoch %= 10**12
    key = layout.format(shard, epoch, name)
    assert layout.parse(key) == L0Key(shard, epoch, name)
    assert key.startswith(layout.shard_prefix(shard))
    assert key.startswith(layout.data_prefix)


@given(epochs, names)
def test_keys_of_one_shard_sort_by_epoch(epoch: int, name: str) -> None:
    later = DEFAULT.format(3, min(epoch + 1, MAX_EPOCH), NAME)
    assert epoch == MAX_EPOCH or DEFAULT.format(3, epoch, name) < later


NEAR_MISSES = {
    "shard too narrow": GOOD.replace("/042/", "/42/"),
    "shard too wide": GOOD.replace("/042/", "/0042/"),
    "epoch too narrow": GOOD.replace("/000000000000000007/", "/00000000000000007/"),
    "epoch too wide": GOOD.replace("/000000000000000007/", "/0000000000000000007/"),
    "epoch above the digits": GOOD.replace("/000000000000000007/", "/1000000000000000000/"),
    "epoch of an int64 overflow": GOOD.replace("/000000000000000007/", "/9223372036854775808/"),
    "plus sign": GOOD.replace("/000000000000000007/", "/+00000000000000007/"),
    "minus sign": GOOD.replace("/000000000000000007/", "/-00000000000000007/"),
    "underscore": GOOD.replace("/000000000000000007/", "/00000000_000000007/"),
    "space": GOOD.replace("/000000000000000007/", "/ 00000000000000007/"),
    "arabic digits": GOOD.replace("/000000000000000007/", f"/00000000000000000{chr(0x667)}/"),
    "fullwidth shard digits": GOOD.replace("/042/", f"/{chr(0xFF10)}{chr(0xFF14)}{chr(0xFF12)}/"),
    "superscript digit": GOOD.replace("/042/", "/04\u00b2/"),
    "uppercase uuid": GOOD.replace(NAME, NAME.upper()),
    "uuid without dashes": GOOD.replace(NAME, NAME.replace("-", "")),
    "uuid in braces": GOOD.replace(NAME, f"{{{NAME}}}"),
    "uuid too short": GOOD[:-1],
    "uuid too long": f"{GOOD}0",
    "trailing newline": f"{GOOD}\n",
    "trailing slash": f"{GOOD}/",
    "trailing space": f"{GOOD} ",
    "trailing NUL": f"{GOOD}\0",
    "suffix": f"{GOOD}.tmp",
    "leading slash": f"/{GOOD}",
    "leading newline": f"\n{GOOD}",
    "double slash": GOOD.replace("/042/", "//042/"),
    "dot segment": GOOD.replace("/042/", "/./042/"),
    "other prefix": GOOD.replace("level_zero", "level_one"),
    "prefix in another case": GOOD.replace("level_zero", "LEVEL_ZERO"),
    "prefix twice": f"level_zero/data/{GOOD}",
    "swapped fields": f"level_zero/data/000000000000000007/042/{NAME}",
    "folder marker": "level_zero/data/042/",
    "the prefix itself": "level_zero/data/",
    "foreign file": "level_zero/data/README.md",
    "hidden file": "level_zero/data/042/.DS_Store",
    "empty": "",
}


@pytest.mark.parametrize("key", NEAR_MISSES.values(), ids=NEAR_MISSES.keys())
def test_a_near_miss_is_no_l0_key(key: str) -> None:
    assert DEFAULT.parse(GOOD) == L0Key(42, 7, NAME)
    assert DEFAULT.parse(key) is None


def test_a_shard_that_the_cluster_does_not_have_is_no_l0_key() -> None:
    layout = KeyLayout(shards=42)
    assert layout.parse(GOOD) is None
    assert KeyLayout(shards=43).parse(GOOD) is not None


def test_an_epoch_that_no_cluster_can_reach_is_no_l0_key() -> None:
    layout = KeyLayout("{shard:01}/{epoch:019}/{uuid}", 10)
    assert layout.parse(f"0/0{MAX_EPOCH}/{NAME}") == L0Key(0, MAX_EPOCH, NAME)
    assert layout.parse(f"0/{MAX_EPOCH + 1}/{NAME}") is None


@given(st.sampled_from(LAYOUTS), st.integers(0, 60), st.characters(), st.sampled_from(["insert", "replace", "delete"]))
def test_a_key_with_one_changed_character_never_misparses(layout: KeyLayout, at: int, character: str, how: str) -> None:
    key = layout.format(1, 7, NAME)
    at %= len(key)
    changed = key[:at] + ("" if how == "delete" else character) + key[at if how == "insert" else at + 1 :]
    parsed = layout.parse(changed)
    assert parsed is None or layout.format(parsed.shard, parsed.epoch, parsed.name) == changed


@given(st.text(max_size=80))
def test_foreign_text_parses_only_if_it_is_a_key(text: str) -> None:
    parsed = DEFAULT.parse(text)
    assert parsed is None or DEFAULT.format(parsed.shard, parsed.epoch, parsed.name) == text


@given(st.sampled_from(LAYOUTS), st.data(), epochs, epochs, names)
def test_before_shard_lies_strictly_between_two_shards(
    layout: KeyLayout, data: st.DataObject, low: int, high: int, name: str
) -> None:
    shard = data.draw(st.integers(1, layout.shards - 1))
    cut = layout.before_shard(shard)
    low, high = low % 10**12, high % 10**12
    assert layout.format(shard - 1, high, name) < cut < layout.format(shard, low, name)
    assert not cut.endswith("/")
    assert layout.parse(cut) is None


@given(st.sampled_from(LAYOUTS), st.data(), st.integers(0, 10**4), names)
def test_before_epoch_and_before_name_lie_strictly_between_keys(
    layout: KeyLayout, data: st.DataObject, epoch: int, name: str
) -> None:
    shard, first = data.draw(st.integers(0, layout.shards - 1)), int(name[:2], 16)
    lower = f"{first - 1:02x}{name[2:]}" if first else name
    assert layout.before_epoch(shard, epoch) < layout.format(shard, epoch, name)
    assert layout.format(shard, epoch, name) < layout.before_epoch(shard, epoch + 1)
    assert layout.before_name(shard, epoch, first) < layout.format(shard, epoch, name)
    assert first == 0 or layout.format(shard, epoch, lower) < layout.before_name(shard, epoch, first)
    for cut in (layout.before_epoch(shard, epoch + 1), layout.before_name(shard, epoch, first + 1)):
        assert not cut.endswith("/")
        assert layout.parse(cut) is None


def test_the_first_shard_begins_at_the_beginning() -> None:
    assert DEFAULT.before_shard(0) == ""


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("level_zero/{epoch:018}/{uuid}", "once each"),
        ("{shard:03}/{epoch:018}/{uuid}/{uuid}", "once each"),
        ("{shard:03}/{epoch:018}/{uuid}/{topic}", "once each"),
        ("{epoch:018}/{shard:03}/{uuid}", "must order"),
        ("{shard}/{epoch:018}/{uuid}", "with widths"),
        ("{shard:03}/{epoch}/{uuid}", "with widths"),
        ("{shard:00}/{epoch:018}/{uuid}", "key template"),
        ("{shard:03}/{epoch:00}/{uuid}", "key template"),
        ("{shard:03}/{epoch:018}/{uuid:036}", "key template"),
        ("{shard:0999999999}/{epoch:018}/{uuid}", "key template"),
        ("{shard:0" + "9" * 5000 + "}/{epoch:018}/{uuid}", "key template"),
        ("{shard:0\uff13}/{epoch:018}/{uuid}", "key template"),
        ("{x}/{shard:03}/{epoch:018}/{uuid}", "once each"),
        ("{x-y}/{shard:03}/{epoch:018}/{uuid}", "key template"),
        ("a{b/{shard:03}/{epoch:018}/{uuid}", "key template"),
        ("a}b/{shard:03}/{epoch:018}/{uuid}", "key template"),
        ("data/{shard:03}\x7f{epoch:018}/{uuid}", "key template"),
    ],
)
def test_a_template_that_cannot_work_is_refused(template: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        KeyLayout(template, 1)


@pytest.mark.parametrize("shards", [0, -1, 1001])
def test_shards_must_fit_their_digits(shards: int) -> None:
    with pytest.raises(UsageError, match="do not fit 3 digits; use 1 to 1000"):
        KeyLayout(shards=shards)


@pytest.mark.parametrize(
    ("layout", "shard", "epoch"),
    [
        (DEFAULT, -1, 0),
        (DEFAULT, 1000, 0),
        (DEFAULT, 0, -1),
        (DEFAULT, 0, MAX_EPOCH + 1),
        (KeyLayout("{shard:01}/{epoch:05}/{uuid}", 10), 0, 100_000),
    ],
)
def test_what_does_not_fit_its_field_is_not_formatted(layout: KeyLayout, shard: int, epoch: int) -> None:
    with pytest.raises(UsageError, match="does not fit"):
        layout.format(shard, epoch, NAME)


def test_objects_spread_evenly_over_the_shards() -> None:
    layout = KeyLayout(shards=10)
    counts = [0] * 10
    for i in range(2000):
        counts[layout.shard_of(str(uuid.UUID(int=i * 7919, version=4)))] += 1
    assert min(counts) > 140
    assert max(counts) < 260


def test_a_journals_folder_has_four_digits() -> None:
    assert journal_log(7) == "l0gc/journal/0007/"


def test_paths_of_a_partition_hold_its_revision() -> None:
    p = PartitionId("flights", 12, 3)
    assert level_one(p, 4, 5, 9, "n") == (
        "level_one/data/flights-12/00003/000000000000000004/00000000000000000005-00000000000000000009-n.parquet"
    )
    assert str(p) == "flights/3"


@given(st.tuples(st.integers(0, 10**20 - 1), st.integers(0, 10**20 - 1)))
def test_level_one_keys_sort_by_base_offset(bases: tuple[int, int]) -> None:
    p = PartitionId("t", 1, 0)
    a, b = (level_one(p, 0, base, base, "n") for base in bases)
    assert (a < b) == (bases[0] < bases[1])


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "é", "a\n", "x" * 201, "a\0", "-dash"])
def test_a_topic_name_unsafe_for_paths_or_shells_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="topic name"):
        check_topic_name(name)


@pytest.mark.parametrize("name", ["a", "...", "A.b_c-9", "x" * 200])
def test_a_topic_name_of_allowed_characters_is_accepted(name: str) -> None:
    assert check_topic_name(name) == name


# -- epochs of many keys at once ----------------------------------------------------------------------------------------


@given(
    st.sampled_from(
        [
            KeyLayout(),
            KeyLayout(shards=4),
            KeyLayout("{shard:01}/{epoch:018}/{uuid}", 10),
            KeyLayout("d/{shard:02}-{epoch:05}-{uuid}.l0", 7),
            KeyLayout("d/{shard:03}/{epoch:019}/{uuid}", 1000),
            KeyLayout("d/{shard:03}/{epoch:020}/{uuid}", 12),
            KeyLayout("d/{shard:03}/{epoch:005}/{uuid}", 12),
            KeyLayout("é/{shard:02}{epoch:020}-{uuid}.x", 100),
        ]
    ),
    st.data(),
)
@tries(120)
def test_the_epochs_of_many_keys_are_what_parsing_each_of_them_says(layout: KeyLayout, data: st.DataObject) -> None:
    epoch = re.search(r"epoch:0(\d+)", layout.template)
    shard = re.search(r"shard:0(\d+)", layout.template)
    assert epoch is not None
    assert shard is not None
    digits = [st.text("0123456789\u0661", min_size=int(w) - 1, max_size=int(w)) for w in (shard[1], epoch[1])]
    keys = data.draw(
        st.lists(
            st.one_of(
                st.text(max_size=60),
                st.builds(
                    lambda s, e, u, tail: (
                        re.sub(
                            r"\{shard[^}]*\}", lambda _: s, re.sub(r"\{epoch[^}]*\}", lambda _: e, layout.template)
                        ).replace("{uuid}", u)
                        + tail
                    ),
                    digits[0],
                    digits[1],
                    st.uuids().map(str),
                    st.sampled_from(["", "", "", "\n", "x"]),
                ),
            ),
            max_size=8,
        )
    )
    parsed = [layout.parse(k) for k in keys]
    assert layout.epochs(keys) == [p.epoch if p is not None else -1 for p in parsed]
