"""The command line as a process: what `python -m sartor` and the installed script start.

Whoever stops it before it has begun ends it without a word, and no failure to begin ends with 1, as that is a verdict of `sartor audit`.
"""

import os
import signal
import sys


def main() -> None:
    """Run one command."""
    try:
        before = signal.getsignal(signal.SIGINT)
        if before is signal.default_int_handler:  # packages may take an exception in the middle of their import for a fault of theirs
            signal.signal(signal.SIGINT, lambda *_: os._exit(130))
        from sartor.cli import main as command

        signal.signal(signal.SIGINT, before)
        command()
    except KeyboardInterrupt:
        sys.exit(130)
    except Warning as warning:
        from sartor.errors import warned

        print(f"error: {warned(warning)}.", file=sys.stderr)
        sys.exit(2)
    except Exception:
        import traceback

        traceback.print_exc()
        sys.exit(70)


if __name__ == "__main__":
    main()
