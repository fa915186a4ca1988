"""The command line: one module per command. Results go to stdout, progress and warnings to stderr.

Bad input ends with exit code 2 and one clear sentence, never a traceback. A defect of this library ends with 70, as 1 is a verdict of
`sartor audit`.
"""

from __future__ import annotations

import importlib
import io
import sys
import traceback
import warnings
from importlib import metadata
from typing import Annotated, Any, TextIO

import typer
import typer.core

from sartor.cli import account, audit, demo, federate, pate, plan, train
from sartor.cli.output import give_up_printing, say, shortened, show
from sartor.errors import SartorError, SartorWarning, warned

# what a wrong option raises: typer's own where it has one, click's before
_USAGE: type[Any] = getattr(typer, "TyperException", None) or importlib.import_module("click").ClickException


class _Command(typer.core.TyperCommand):
    """A command whose help shows brackets as they are: Typer before 0.21, which Flower needs, marks them for rich text."""

    def get_help(self, ctx: Any) -> str:
        return super().get_help(ctx).replace("\\[", "[")


app = typer.Typer(
    name="sartor",
    help="Differential privacy cut to measure: every holder sets their own budget.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("plan", cls=_Command)(plan.plan)
app.command("train", cls=_Command)(train.train)
app.command("pate", cls=_Command)(pate.pate)
app.command("federate", cls=_Command)(federate.federate)
app.command("account", cls=_Command)(account.account)
app.command("audit", cls=_Command)(audit.audit)
app.command("demo", cls=_Command)(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        show(f"sartor {metadata.version('sartor')}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")] = False,
) -> None:
    pass


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    if issubclass(category, SartorWarning):
        say(f"warning ({category.__name__}): {message}")


def main(arguments: list[str] | None = None) -> None:
    """Run one command."""
    warnings.simplefilter("always", SartorWarning)
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without a letter shows another instead
    try:
        code = app(arguments, standalone_mode=False)
        if code == 1 and {"--show-completion", "--install-completion"} & set(sys.argv[1:] if arguments is None else arguments):
            code = 2  # a shell that Typer does not know
    except SartorError as error:
        say(f"error: {error}")
        code = 2
    except _USAGE as error:
        message = error.format_message()
        if message.lower().startswith("usage"):  # all of the help
            print(message, file=sys.stderr)
        else:
            say(f"error: {message}")
        code = 2
    except (typer.Abort, KeyboardInterrupt):
        say("stopped.")
        code = 130
    except SystemExit:  # of a package; or click's, where nobody reads a help text to its end
        say("error: the command was ended before its work was done, by a package that it uses or because nobody reads its output.")
        code = 2
    except MemoryError:
        say("error: this needs more memory than there is: ask for fewer holders, records or steps.")
        code = 2
    except Warning as warning:
        say(f"error: {warned(warning)}.")
        code = 2
    except OSError as error:  # a disk that is full, a name that is too long, a file that went away
        where = shortened(str(error.filename)) + ": " if error.filename else ""
        say(f"error: {where}{error.strerror or error}.")
        code = 2
    except Exception:  # whatever it is, it is no verdict
        traceback.print_exc()
        say("error: this is a defect of sartor, or of a package that it uses; nothing is said of any promise.")
        code = 70
    sys.exit(_printed(code or 0))


def _printed(code: int) -> int:
    """The exit code, once all that was printed has left; what a full or closed output cannot take is not tried a second time."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        give_up_printing()
        return code or 2
    return code
