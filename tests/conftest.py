"""What every test run shares."""

import os
import signal
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

pytest.register_assert_rewrite("sartor_testing", "mutants")

# What is printed must not depend on the terminal that the tests were started from, nor on what a service sets for its logs.
WIDTH = ("COLUMNS", "LINES", "TERMINAL_WIDTH")
COLOURS = ("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "GITHUB_ACTIONS")
for name in (*WIDTH, *COLOURS):
    os.environ.pop(name, None)

# There are as many workers as cores, so each computes with one thread, and so do the programs that it starts; a number that was set stays.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A run in the background may ignore Ctrl-C, and so would the programs that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, so that a change passes or fails by its own doing; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
if settings.get_current_profile_name() == "same" and hasattr(providers, "_get_local_constants"):
    # Hypothesis also tries numbers that it finds in whatever modules are loaded, and those differ from worker to worker.
    providers._get_local_constants = lambda: providers._local_constants


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="also run what takes long and rarely finds more")


def pytest_configure(config):
    from sartor_testing import amount

    config.addinivalue_line("markers", "long: left out unless --long is given")
    config.addinivalue_line("markers", "few(count): of the cases of a test, all but the first ones are left out unless --long is given")
    amount.long = config.getoption("--long")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--long"):
        return
    cases = Counter()
    for item in items:
        few = item.get_closest_marker("few")
        test = (item.path, getattr(item, "originalname", item.name))
        cases[test] += 1
        if item.get_closest_marker("long") or (few and cases[test] > few.args[0]):
            item.add_marker(pytest.mark.skip(reason="--long runs it"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from sartor_testing.workers import ByFixture

    return ByFixture(config, log)


@pytest.fixture
def two_threads():
    """PyTorch with two threads, whatever there is."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(capsys):
    """Runs one command here; gives its exit code, stdout and stderr."""

    from sartor.cli import main

    def sartor_(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return sartor_
