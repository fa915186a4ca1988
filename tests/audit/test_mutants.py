"""Privacy mutants: every deliberate break is caught, and those who catch them see nothing in the sound library."""

import pytest

from mutants import MUTANTS, catchers, planted
from sartor.run.stream import normal
from sartor.sgd import run as running

EVERY = list(MUTANTS.values())
QUICK = [mutant for mutant in EVERY if mutant.quick]


def always(values, among):
    """Cases to parametrize with: some always, the others with --long."""
    return [pytest.param(value, id=value.name, marks=() if value in among else pytest.mark.long) for value in values]


@pytest.mark.parametrize("mutant", always(EVERY, QUICK))
def test_every_mutant_is_caught(mutant):
    assert mutant.is_caught


@pytest.mark.parametrize("catcher", always(catchers(EVERY), catchers(QUICK)))
def test_nobody_sees_anything_in_the_sound_library(catcher):
    assert not catcher.prepare()()


def test_there_are_enough_mutants_of_every_kind():
    kinds = [mutant.kind for mutant in EVERY]
    assert len(EVERY) >= 40
    assert kinds.count("attack") >= 8
    assert kinds.count("replay") >= 12
    assert {kind for mutant in QUICK for kind in mutant.kind.split(" and ")} == {"attack", "replay", "test"}
    assert 3 * len(QUICK) >= len(EVERY)


def test_every_mutant_says_in_a_sentence_what_is_broken():
    for mutant in EVERY:
        assert mutant.sentence.endswith(".")
        assert len(mutant.sentence) > 20
    assert len({catcher.name for catcher in catchers(EVERY)}) == len(catchers(EVERY))


def test_a_mutant_is_gone_when_its_planting_ends():
    with pytest.raises(ZeroDivisionError), planted("noise-too-low"):
        assert running.normal is not normal
        raise ZeroDivisionError
    assert running.normal is normal
