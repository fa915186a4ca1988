"""Privacy mutants: small, deliberate breaks of the library, and who catches each of them.

    from mutants import planted

    with planted("noise-too-low"):
        ...  # the library adds too little noise here

No mutant is shipped. `python -m mutants` plants them one after the other and prints who caught each, in how many seconds.
"""

from mutants import accounting, federated, files, filters, gradients, individual, pate, runs_that_go_on, sampling, sgd
from mutants.machinery import MUTANTS, Catcher, Mutant, catchers, planted

ROOMS = (sgd, runs_that_go_on, gradients, sampling, accounting, filters, pate, federated, individual, files)
"""Where the mutants are."""

__all__ = ["MUTANTS", "ROOMS", "Catcher", "Mutant", "catchers", "planted"]
