"""Lower bounds beside those of jax_privacy's `CanaryScoreAuditor`, on the same scores of mechanisms whose epsilon is known.

    pip download --no-deps jax-privacy && unzip jax_privacy-*.whl -d DIR      # its auditor needs NumPy, SciPy and dp_accounting alone
    python benchmarks/auditors.py --auditing DIR/jax_privacy/auditing.py      # ten minutes

1,000 scores in and 1,000 out, confidence 0.99, epsilon 4, 200 repetitions: the mean bound of each, and how often it is above the truth.
Also how far the formulas in `tests/sartor_testing/membership.py`, which the tests have instead of the package, are from it.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from sartor.audit.bounds import bound_at, f_dp_bound_of, gaussian_bound, one_run_bound_of, threshold_bound
from sartor.audit.scores import Scores

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from sartor_testing import membership

EPSILON, SIZE, RISK = 4.0, 1_000, 0.01
MECHANISMS = (membership.randomised_response, membership.told_outright, membership.laplace, membership.gaussian)

Bound = Callable[[Scores, float, int], float]


def theirs_of(auditing: ModuleType) -> dict[str, Bound]:
    """What their auditor offers, by name."""

    def of(name: str, *more: Any, strategy: Callable[[int], Any] | None = None) -> Bound:
        def bound(scores: Scores, delta: float, seed: int) -> float:
            auditor = auditing.CanaryScoreAuditor(scores.inside, scores.outside)
            how = {} if strategy is None else {"threshold_strategy": strategy(seed)}
            return float(getattr(auditor, name)(RISK, delta, *more, **how))

        return bound

    ways: dict[str, Callable[[int], Any]] = {
        "Bonferroni": lambda seed: auditing.Bonferroni(),
        "Split": lambda seed: auditing.Split(seed=seed),
        "MultiSplit": lambda seed: auditing.MultiSplit(num_samples=20, seed=seed),
        "Explicit(0.5)": lambda seed: auditing.Explicit(0.5),
    }
    found = {}
    for way, strategy in ways.items():
        for sided in (True, False):
            name = f"epsilon_clopper_pearson, {way}, {'one' if sided else 'two'}-sided"
            found[name] = of("epsilon_clopper_pearson", sided, strategy=strategy)
    found["epsilon_one_run, Bonferroni"] = of("epsilon_one_run")
    found["epsilon_one_run, Split"] = of("epsilon_one_run", strategy=ways["Split"])
    found["epsilon_one_run_fdp, Split"] = of("epsilon_one_run_fdp", strategy=ways["Split"])
    found["epsilon_from_gdp"] = of("epsilon_from_gdp")
    return found


OURS: dict[str, Bound] = {
    "threshold_bound": lambda scores, delta, seed: threshold_bound(scores, delta, 1 - RISK, seed=seed),
    "bound_at(0.5)": lambda scores, delta, seed: bound_at(scores, [0.5], delta, 1 - RISK),
    "one_run_bound_of": lambda scores, delta, seed: one_run_bound_of(scores, delta, 1 - RISK, seed=seed),
    "f_dp_bound_of": lambda scores, delta, seed: f_dp_bound_of(scores, delta, 1 - RISK, seed=seed),
    "gaussian_bound": lambda scores, delta, seed: gaussian_bound(scores, delta, 1 - RISK, deviation=1.0),
}


def of_mechanism(mechanism: Any, bounds: Mapping[str, Bound], repetitions: int) -> dict[str, str]:
    """The mean of each bound, and in how many of the repetitions it is above the truth."""
    delta = membership.KNOWN[mechanism]
    drawn = [mechanism(EPSILON, SIZE, np.random.default_rng([11, number])) for number in range(repetitions)]
    found = {}
    for name, bound in bounds.items():
        gauss = any(word in name for word in ("gaussian", "gdp", "fdp", "f_dp"))
        if (gauss and mechanism is not membership.gaussian) or ("one_run" in name and not delta and not name.startswith("one_run_bound")):
            found[name] = ""
            continue
        values = np.array([bound(scores, delta, number) for number, scores in enumerate(drawn)])
        found[name] = f"{values.mean():.3f} ({(values > EPSILON).sum()})"
    return found


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--auditing", type=Path, required=True, help="jax_privacy's auditing.py")
    parser.add_argument("--repetitions", type=int, default=200)
    asked = parser.parse_args()
    spec = importlib.util.spec_from_file_location("auditing", asked.auditing)
    assert spec is not None
    assert spec.loader is not None
    auditing = importlib.util.module_from_spec(spec)
    sys.modules["auditing"] = auditing
    spec.loader.exec_module(auditing)
    bounds = {**OURS, **theirs_of(auditing)}
    columns = [of_mechanism(mechanism, bounds, asked.repetitions) for mechanism in MECHANISMS]
    names = ["randomised response", "told outright", "Laplace", "Gaussian"]
    print(f"| bound | {' | '.join(names)} |\n| {' | '.join(['---'] * 5)} |")
    for name in bounds:
        print(f"| {name} | {' | '.join(column[name] for column in columns)} |")
    apart = 0.0
    for mechanism in MECHANISMS:
        delta, scores = membership.KNOWN[mechanism], mechanism(EPSILON, SIZE, np.random.default_rng(5))
        for sided in (True, False):
            theirs = auditing.CanaryScoreAuditor(scores.inside, scores.outside).epsilon_clopper_pearson(RISK, delta, sided)
            apart = max(apart, abs(theirs - membership.auditor_bonferroni(scores, delta, RISK, sided)))
    print(f"\nThe tests' formulas are at most {apart:.1g} from theirs.")


if __name__ == "__main__":
    main()
