"""What every test run shares."""

import os

import pytest
from hypothesis import settings

# The same examples in every run, so that a change passes or fails by its own doing; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="also run what takes long and rarely finds more: all of the random plans")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: left out unless --long is given")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="--long runs it"))
