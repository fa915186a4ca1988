"""What a worker of pytest-xdist runs as a whole: a file whose tests share a fixture, so that no other worker makes it again; else one test.

pytest-xdist's own groups (`--dist loadgroup`) change names of tests in a way that pytest 9.2 no longer has, and then group nothing.
"""

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]


class ByFixture(LoadScopeScheduling):
    """Hands out the largest files first, then one test after the other."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if shares_a_fixture(file) else nodeid


@cache
def shares_a_fixture(file: str) -> bool:
    """Whether a file has fixtures that are made once for several tests."""
    return file.endswith(".py") and 'fixture(scope="' in (ROOT / file).read_text()
