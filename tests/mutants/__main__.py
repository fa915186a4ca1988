"""Plants every mutant, or those that are named, and prints who caught it."""

import argparse
import sys

from mutants.table import main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to plant, instead of all")
    sys.exit(main(parser.parse_args().names))
