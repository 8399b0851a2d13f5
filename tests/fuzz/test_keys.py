"""L0 keys and key templates of any text: what is not an L0 key parses to None, and no template stops the process."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import UsageError
from l0gc.keys import DEFAULT_TEMPLATE, KeyLayout
from tests.fuzz.mutations import fuzzing

LAYOUT = KeyLayout(shards=7)
NAME = "0b1c2d3e-4f50-4162-8374-8596a7b8c9d0"
KEYS = st.builds(LAYOUT.format, st.integers(0, 6), st.integers(0, 10**18 - 1), st.just(NAME))
CHARACTERS = st.sampled_from("0123456789abcdef-/_.~ \n\r\0\u0660\uff11\u00b2AFx+") | st.characters()
WIDTHS = st.sampled_from(
    ["", ":03", ":018", ":3", ":0", ":0\uff13", ":0999999999", ":0" + "9" * 5000, ":-1", ":x", "!r"]
)
TEMPLATES = st.builds(
    "{}{{shard{}}}{}{{epoch{}}}{}{{uuid{}}}{}".format,
    st.sampled_from(["data/", "", "~", "{", "{uuid}"]),
    WIDTHS,
    st.sampled_from(["/", "", "~", "}", "-"]),
    WIDTHS,
    st.sampled_from(["/", "", "~"]),
    st.just("") | WIDTHS,
    st.sampled_from(["", ".x", "}"]),
)


@st.composite
def edited(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> str:
    """Draw one of the texts, with a few characters inserted, omitted or replaced."""
    text = draw(texts)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.text(CHARACTERS, max_size=3)) + text[at + draw(st.integers(0, 3)) :]
    return text


@fuzzing(400)
@given(edited(KEYS) | st.text(CHARACTERS))
def test_what_parses_is_exactly_what_would_be_written(key: str) -> None:
    parsed = LAYOUT.parse(key)
    if parsed is not None:
        assert LAYOUT.format(parsed.shard, parsed.epoch, parsed.name) == key


@fuzzing(200)
@given(edited(st.just(DEFAULT_TEMPLATE)) | TEMPLATES, st.integers(-1, 1001) | st.integers())
def test_a_template_is_refused_or_writes_what_it_parses(template: str, shards: int) -> None:
    try:
        layout = KeyLayout(template, shards)
    except UsageError:
        return
    for shard in (0, shards - 1):
        key = layout.format(shard, 7, NAME)
        parsed = layout.parse(key)
        assert parsed is not None
        assert (parsed.shard, parsed.epoch, parsed.name) == (shard, 7, NAME)
        assert key.startswith(layout.data_prefix)
        assert layout.before_shard(shard) < key < layout.before_shard(shard + 1)
