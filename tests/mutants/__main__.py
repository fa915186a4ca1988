"""Plants every mutant and prints who caught it."""

import sys

from mutants.table import main

if __name__ == "__main__":
    sys.exit(main())
