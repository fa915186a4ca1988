"""`sartor audit` on every scheme: nothing is found in the sound library, and a planted break is refuted, by an attack and by replay."""

import json

import pytest
from typer.testing import CliRunner

from mutants import planted
from sartor.cli import app
from sartor_testing.amount import examples

SGD = 'dataset = "digits"\nbatch = 200\nepsilon = "1,4"\nshare = "0.5,0.5"\ndelta = "1e-3"\naccountant = "rdp"\n'
TEN, MANY = "steps = 10\n", "steps = 60\n"
LADDER = MANY + 'individual = "ladder"\nrefresh = 10\nfull_steps = 20\n'
STEPS = {
    "sample": TEN,
    "scale": TEN,
    "scale, ladder": LADDER,
    "rounds": TEN + "rounds = 2\n",
    "uniform": TEN,
    "hybrid": TEN + "mix = 0.5\n",
    "exclude": TEN + "threshold = 2\n",
    "sequential": TEN,
    "jorgensen": TEN,
    "adapdp": TEN + "rounds = 2\n",
    "equal, ladder": LADDER,
    "scale, Renyi": LADDER.replace("ladder", "renyi"),
}
PATE = 'command = "pate"\nteachers = 20\nworkers = 1\nepsilon = "0.3,1"\nshare = "0.5,0.5"\ndelta = "1e-3"\n'
VARIANTS = ("upsample", "weight", "vanish", "standard")
# enough noise for a few queries: under vanish a member's teachers are few in each of them
GNMAX = {name: f'{PATE}aggregator = "gnmax"\nnoise = {25 if name == "vanish" else 12}\n' for name in VARIANTS}
CONFIDENT = PATE + 'aggregator = "confident"\nnoise = 30\nthreshold = 8\nthreshold_noise = 40\n'
CLIENTS = 'command = "federate"\ndataset = "digits"\nclients = 200\nrounds = 10\nper_round = 40\n'
ROUNDS = CLIENTS + 'epsilon = "1,4"\nshare = "0.5,0.5"\ndelta = "1e-3"\n'

# settings, and breaks that an attack and a replay see
CASES = {
    **{
        f"SGD {name}": (f'{SGD}scheme = "{name.partition(",")[0]}"\n{how}', "noise-at-a-third", "noise-too-low")
        for name, how in STEPS.items()
    },
    **{f"PATE {name}": (f'{GNMAX[name]}variant = "{name}"\n', *["votes-charged-at-a-fortieth"] * 2) for name in VARIANTS},
    **{f"PATE {name}, tested": (f'{CONFIDENT}variant = "{name}"\n', *["votes-charged-at-a-fortieth"] * 2) for name in VARIANTS},
    **{
        f"rounds {name}": (f'{ROUNDS}scheme = "{name}"\n', "update-noise-at-a-third", "update-noise-at-a-third")
        for name in ("sample", "scale", "hybrid", "uniform")
    },
    "rounds scale, adaptive": (
        f'{ROUNDS}scheme = "scale"\nadaptive_clip = 0.5\ncount_noise = 15\n',
        "update-clipped-at-three-times-the-clip",
        "count-without-noise",
    ),
}
QUICK = ("SGD sample", "PATE weight", "rounds scale")


def audit(path, *arguments):
    """The document, and the exit code."""
    found = CliRunner().invoke(app, ["audit", str(path), *map(str, arguments), "--json"])
    assert found.stdout, found.output + str(found.exception)
    return json.loads(found.stdout), found.exit_code


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in CASES])
def test_no_scheme_is_refuted_but_where_it_is_broken(name, file):
    settings, for_attack, for_replay = CASES[name]
    path = file("settings.toml", settings)
    for asked, mutant in (
        (["--attack", "canary", "--canaries", examples(1200, 4000)], for_attack),
        (["--attack", "replay", "--holders", examples(1, 2), "--steps", examples(6, 60)], for_replay),
    ):
        document, code = audit(path, *asked)
        assert (document["verdict"], code) == ("consistent", 0), document
        for group in document.get("groups", ()):
            assert group["lower_bound"] <= group["epsilon"]
        with planted(mutant):
            document, code = audit(path, *asked)
        assert (document["verdict"], code) == ("refuted", 1), (mutant, document)
