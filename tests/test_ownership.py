"""An ownership: what it is made from is checked, and nothing of it changes afterwards."""

import numpy as np
import pytest

import sartor


@pytest.mark.parametrize("holders", [2.7, 3.0, True, False, float("inf"), float("nan"), "3", None, np.float64(3), np.True_, [3]])
def test_the_number_of_holders_is_a_whole_number(holders):
    of_record = [0, 0, 0] if holders is True or holders is np.True_ else [0, 1, 2]
    with pytest.raises(sartor.SartorError, match="number of holders is a whole number"):
        sartor.Ownership(of_record, holders)


@pytest.mark.parametrize("holders", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers_of_any_type_are_taken(holders):
    owners = sartor.Ownership([0, 1, 2], holders)
    assert (owners.holders, type(owners.holders)) == (3, int)


@pytest.mark.parametrize("name", ["of_record", "counts", "_order", "_begin"])
def test_no_array_of_an_ownership_can_be_changed(name):
    owners = sartor.Ownership([1, 0, 1, 2], 3)
    held = getattr(owners, name)
    with pytest.raises(ValueError, match="read-only"):
        held[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        held.flags.writeable = True
    assert [owners.records_of(np.array([i]))[0].tolist() for i in range(3)] == [[1], [0, 2], [3]]
