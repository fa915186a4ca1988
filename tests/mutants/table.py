"""Plants every mutant, one after the other in two processes, and prints a table: the mutant, who caught it, in how many seconds.

The exit code is 1 where a mutant escapes, or where a catcher sees something in the sound library.
"""

import os
import sys
import time
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

PROCESSES = 2


def looked(kind: str, name: str) -> tuple[str, str, bool, float]:
    """Have a catcher look at the sound library, or all of a mutant's at the mutant: what was looked at, by whom, whether it is right."""
    from mutants import MUTANTS, catchers

    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if kind == "sound":
                one = next(catcher for catcher in catchers(list(MUTANTS.values())) if catcher.name == name)
                right, by = not one.prepare()(), one.kind
            else:
                right, by = MUTANTS[name].is_caught, MUTANTS[name].kind
        except Exception:
            traceback.print_exc()
            right, by = False, "an error"
    return f"{kind}: {name}" if kind == "sound" else name, by, right, time.perf_counter() - begin


def main(names: list[str]) -> int:
    """Look at everything, or at the mutants of these names and at what catches them; the exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core for each process
    from mutants import MUTANTS, catchers
    from sartor.layout import Table

    if unknown := sorted(set(names) - set(MUTANTS)):
        print(f"there is no mutant {unknown[0]}; there are {', '.join(MUTANTS)}.", file=sys.stderr)
        return 2
    chosen = {name: MUTANTS[name] for name in names or MUTANTS}
    work = [("sound", catcher.name) for catcher in catchers(list(chosen.values()))] + [("mutant", name) for name in chosen]
    begin, rows, wrong = time.perf_counter(), [], []
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for (kind, _), (what, by, right, seconds) in zip(work, pool.map(looked, *zip(*work, strict=True)), strict=True):
            if kind == "mutant":
                rows.append([what, by if right else "NOBODY", f"{seconds:.1f}"])
            if not right:
                wrong.append(what)
    print(Table(["mutant", "caught by", "seconds"], rows, left=2))
    kinds = {kind: sum(mutant.kind == kind for mutant in chosen.values()) for kind in ("attack", "replay", "test")}
    alone = ", ".join(f"{count} by {'an ' if kind == 'attack' else 'a '}{kind} alone" for kind, count in kinds.items())
    print(f"\n{len(chosen)} mutants ({alone}), in {time.perf_counter() - begin:.0f} seconds.")
    for what in wrong:
        print(f"{what} was seen." if what.startswith("sound: ") else f"{what} escaped.", file=sys.stderr)
    return 1 if wrong else 0
