"""How `make test` shares work out: a fixture that many use is made by one worker, and a worker computes with one thread."""

import os

import pytest

pytestmark = pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="runs where there are workers: pytest -n 2")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Fails where it is made a second time, by whichever worker."""
    folder = tmp_path_factory.getbasetemp().parent / "made-once"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("test", range(8))
def test_a_fixture_that_many_use_is_made_by_one_worker(shared, test):
    assert shared.is_dir()


def test_a_worker_computes_with_the_threads_that_it_was_given():
    import torch

    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])
