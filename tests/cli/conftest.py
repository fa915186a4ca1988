"""What the tests of all commands share."""

import pytest

from sartor.cli import main


@pytest.fixture
def run(capsys):
    """Runs one command here; gives its exit code, stdout and stderr."""

    def sartor_(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return sartor_
