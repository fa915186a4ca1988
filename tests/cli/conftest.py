"""What the tests of all commands share."""

import csv

import pytest


@pytest.fixture
def file(tmp_path):
    """Writes a file: text as it is, rows as a CSV."""

    def write(name, content):
        path = tmp_path / name
        if isinstance(content, str):
            path.write_text(content)
            return path
        with open(path, "w", newline="") as out:
            writer = csv.DictWriter(out, list(content[0]))
            writer.writeheader()
            writer.writerows(content)
        return path

    return write
