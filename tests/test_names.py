"""How holders are named: what nobody sees makes no other name, and no word for nobody a person."""

import pytest

from sartor.names import alike, of_nobody

UNSEEN = [
    *(0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x200B, 0x2060, 0x2065, 0x2800, 0x3164),
    *(0xFE00, 0xFE0F, 0xFEFF, 0xFFA0, 0xFFF0, 0x1BCA0, 0x1D173, 0xE0000, 0xE0001, 0xE0020, 0xE0100, 0xE01EF, 0xE0FFF),
]


@pytest.mark.parametrize("code", UNSEEN, ids=hex)
def test_what_nobody_sees_makes_no_other_name(code):
    unseen = chr(code)
    assert {alike(name) for name in (f"Ann{unseen}", f"{unseen}Ann", f"A{unseen}nn", f"{unseen} ann {unseen}")} == {alike("Ann")}
    assert alike(f"7{unseen}1") == alike("71") != alike(f"7{unseen}")
    assert alike(f"Rene{unseen}\u0301") == alike("Ren\u00e9")
    assert of_nobody(["ann", f"unknown{unseen}", f"unknown{unseen}"]) == of_nobody([unseen, unseen * 2]) == 2


@pytest.mark.parametrize("name", ["\uac00", "\u1100\u1161", "\u3163", "\u2801", "\u1810", "\u17b6", "\U000e1000"])
def test_what_is_seen_next_to_it_is_kept(name):
    assert alike(f"a{name}") != alike("a")


def test_words_for_nobody_count_together_however_they_are_written():
    assert of_nobody(["unknown", "Unknown\u200b", " UNKNOWN", "\uff1f", "?", "nan", "ann", "ann"]) == 5
    assert of_nobody(["unknown", "nan", "?", "7", "7"]) == 0
