"""`sartor plan`: budgets in, a checked plan out; bad input is one sentence and exit code 2."""

import json
import math
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import sartor

PAPER = shlex.split("--epsilon 1,2,3 --share .34,.43,.23 --holders 60000 --delta 1e-5 --steps 9375 --batch 512 --clip 0.2")
SMALL = shlex.split("--epsilon 1,2 --share .5,.5 --holders 100 --delta 1e-5 --accountant rdp --steps 50 --batch 10")
RUN = shlex.split("--accountant rdp --steps 50 --batch 10")

KEYS = {"scheme", "accountant", "steps", "batch", "clip", "noise_multiplier", "groups"}
GROUP_KEYS = {"epsilon", "delta", "holders", "rate", "clip", "noise_multiplier", "expected_uses", "spent", "excess"}


@pytest.fixture
def file(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def program(*arguments):
    """Runs the installed program."""
    command = [Path(sys.executable).with_name("sartor"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def without(arguments, option):
    at = arguments.index(option)
    return [*arguments[:at], *arguments[at + 2 :]]


# --- the document ---


def test_the_papers_setting_gives_its_documented_json():
    done = program("plan", *PAPER, "--scheme", "sample", "--accountant", "rdp", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document.keys() >= KEYS
    assert [document[key] for key in ("scheme", "accountant", "steps", "batch", "clip")] == ["sample", "rdp", 9375, 512, 0.2]
    assert document["noise_multiplier"] == pytest.approx(2.0287, rel=3e-3)
    groups = document["groups"]
    assert all(group.keys() == GROUP_KEYS for group in groups)
    assert [(group["epsilon"], group["delta"], group["holders"]) for group in groups] == [
        (1, 1e-5, 20_400),
        (2, 1e-5, 25_800),
        (3, 1e-5, 13_800),
    ]
    for group in groups:
        assert 0.995 * group["epsilon"] <= group["spent"] <= group["epsilon"]
        assert group["expected_uses"] == pytest.approx(group["rate"] * 9375)
        assert (group["clip"], group["noise_multiplier"]) == pytest.approx((0.2, document["noise_multiplier"]))
        assert group["excess"] >= 0
    assert sum(group["rate"] * group["holders"] for group in groups) == pytest.approx(512, rel=2e-3)


def test_the_command_and_the_library_make_the_same_plan(run):
    code, out, _ = run("plan", *PAPER, "--scheme", "hybrid", "--mix", "0.5", "--accountant", "rdp", "--reserve", "0.1", "--json")
    budgets = sartor.Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=60_000, delta=1e-5, reserve=0.1)
    plan = sartor.plan(budgets, "hybrid", steps=9_375, batch=512, clip=0.2, accountant="rdp", mix=0.5)
    assert code == 0
    assert sartor.Plan.from_json(json.loads(out)) == plan


def test_scale_is_the_scheme_and_pld_the_accountant_unless_said_otherwise(run):
    document = json.loads(run("plan", *without(SMALL, "--accountant"), "--json")[1])
    assert (document["scheme"], document["accountant"], document["clip"]) == ("scale", "pld", 1.0)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("scale", []),
        ("sample", []),
        ("uniform", []),
        ("hybrid", ["--mix", "0.3"]),
        ("hybrid", ["--max-excess", "0.001"]),
        ("exclude", ["--threshold", "1.5"]),
        ("sequential", ["--order", "open-first"]),
    ],
)
def test_every_scheme_prints_one_document_that_keeps_every_budget(run, scheme, options):
    code, out, err = run("plan", *SMALL, "--scheme", scheme, *options, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["scheme"] == scheme
    for option, value in zip(options[::2], options[1::2], strict=True):
        assert str(document["options"][option[2:].replace("-", "_")]) == value
    assert all(group["spent"] <= group["epsilon"] for group in document["groups"])


def test_infinity_is_the_string_inf(run):
    code, out, _ = run("plan", *without(SMALL, "--epsilon"), "--epsilon", "1,inf", "--json")
    document = json.loads(out, parse_constant=pytest.fail)
    public = document["groups"][1]
    assert code == 0
    assert (public["epsilon"], public["spent"]) == ("inf", "inf")
    assert document["groups"][0]["spent"] <= 1


def test_each_group_may_have_its_own_delta(run):
    document = json.loads(run("plan", *without(SMALL, "--delta"), "--delta", "1e-5,1e-6", "--json")[1])
    assert [(group["epsilon"], group["delta"]) for group in document["groups"]] == [(1, 1e-5), (2, 1e-6)]


def test_one_epsilon_needs_no_share(run):
    document = json.loads(run("plan", "--epsilon", "2", "--holders", "40", "--delta", "1e-5", *RUN, "--json")[1])
    assert [group["holders"] for group in document["groups"]] == [40]


def test_public_records_take_the_caps_they_are_given(run):
    options = ["--epsilon", "1,inf", "--public-rate", "0.05", "--public-clip", "3"]
    document = json.loads(run("plan", *without(SMALL, "--epsilon"), *options, "--json")[1])
    assert (document["groups"][1]["rate"], document["groups"][1]["clip"]) == (0.05, 3)


def test_deniable_budgets_never_rise(run):
    budgets = ["--epsilon", "1,2,4", "--share", ".2,.3,.5", "--holders", "3000", "--delta", "1e-5"]
    document = json.loads(run("plan", *budgets, *RUN, "--deniable", "--seed", "5", "--json")[1])
    holders = {group["epsilon"]: group["holders"] for group in document["groups"]}
    assert sum(holders.values()) == 3_000
    assert holders[4] < 1_500
    assert holders[1] > 600
    assert holders[4] + holders[2] < 2_400


# --- filters ---

FILTER = [*SMALL, "--refresh", "5", "--full-steps", "30"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--filter", "ladder", "--ladder", "1,3,9"], {"filter": "ladder", "ladder": (1, 3, 9)}),
        (["--filter", "renyi"], {"filter": "renyi"}),
        (["--filter", "ladder", "--scheme", "equal"], {"filter": "ladder", "scheme": "equal"}),
    ],
)
def test_a_plan_with_a_filter_is_the_librarys_and_says_when_full_norm_rests(run, asked, told):
    code, out, err = run("plan", *FILTER, *asked, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    budgets = sartor.Budgets.from_shares([1, 2], [0.5, 0.5], holders=100, delta=1e-5)
    made = sartor.plan(budgets, **{"accountant": "rdp", "steps": 50, "batch": 10, "refresh": 5, "full_steps": 30, **told})
    assert sartor.Plan.from_json(document) == made
    assert document["filter"] == {"kind": told["filter"], "refresh": 5, "full_steps": 30}
    assert [group["rests_at"] for group in document["groups"]] == made.rests_at.tolist()
    assert "scheme" in told or made.rests_at.tolist() == [30, 30]


def test_the_table_of_a_filter_says_when_full_norm_rests(run):
    code, out, _ = run("plan", *FILTER, "--filter", "ladder")
    assert code == 0
    assert "50 steps of which full norm pays for 30 (ladder filter, norms tracked every 5)" in " ".join(out.split())
    assert "rests at" in " ".join(out.split())
    assert "rests" not in run("plan", *SMALL)[1]


def test_norms_are_tracked_once_an_epoch_or_ten_times_and_full_norm_pays_for_three_in_four_steps(run):
    found = [
        json.loads(run("plan", *SMALL, "--filter", "ladder", "--batch", batch, "--steps", "40", "--json")[1])["filter"]
        for batch in ("50", "10")
    ]
    assert found == [{"kind": "ladder", "refresh": 2, "full_steps": 30}, {"kind": "ladder", "refresh": 4, "full_steps": 28}]


def test_a_renyi_filter_brings_its_accountant(run):
    document = json.loads(run("plan", *without(FILTER, "--accountant"), "--filter", "renyi", "--json")[1])
    assert document["accountant"] == "rdp"


# --- tables and warnings ---


def test_without_json_it_prints_the_table(run):
    code, out, err = run("plan", *PAPER, "--scheme", "sample", "--accountant", "rdp")
    assert (code, err) == (0, "")
    for shown in ("epsilon", "noise multiplier", "expected uses", "spent", "excess", "20,400", "25,800", "13,800"):
        assert shown in out
    noise = float(re.search(r"noise multiplier ([\d.]+) on a clip of 0.2", out)[1])
    assert noise == pytest.approx(2.0287, rel=3e-3)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_warnings_go_beside_the_result(run, form):
    rare = ["--epsilon", "1,10,100", "--share", ".34,.43,.23", "--holders", "60000", "--delta", "1e-5", "--scheme", "sample"]
    code, out, err = run("plan", *rare, "--steps", "9375", "--batch", "512", "--accountant", "rdp", *form)
    assert code == 0
    assert re.fullmatch(r"warning \(RarelyUsed\): .*20400 of 60000 holders.*\n", err)
    assert "warning" not in out
    if form:
        assert json.loads(out)["groups"][0]["expected_uses"] < 1


def test_a_run_without_noise_says_that_it_protects_nobody(run):
    code, out, err = run("plan", "--epsilon", "inf", "--holders", "40", "--delta", "1e-5", *RUN, "--json")
    assert code == 0
    assert re.fullmatch(r"warning \(NoNoise\): .*protects nobody.\n", err)
    assert json.loads(out)["noise_multiplier"] == 0


def test_help_names_every_option_and_is_no_error(run):
    code, out, err = run("plan", "--help")
    assert (code, err) == (0, "")
    for option in ("--epsilon", "--share", "--holders", "--delta", "--budgets", "--policy", "--scheme", "--reserve", "--out", "--json"):
        assert option in out
    assert "[default: scale]" in " ".join(out.split())
    assert "\\" not in out


# --- files ---


def test_budgets_come_from_a_file(run, file):
    rows = [f"h{i},{1 + i % 2},{'1e-6' if i % 2 else ''}" for i in range(60)]
    path = file("budgets.csv", "\n".join(["holder,epsilon,delta", *rows]))
    code, out, err = run("plan", "--budgets", path, "--delta", "1e-5", *RUN, "--json")
    assert (code, err) == (0, "")
    groups = json.loads(out)["groups"]
    assert [(group["epsilon"], group["delta"], group["holders"]) for group in groups] == [(1, 1e-5, 30), (2, 1e-6, 30)]


def test_levels_come_from_a_file_with_its_policy(run, file):
    path = file("levels.csv", "\n".join(["holder,level", *(f"h{i},{('strict', 'open', 'public')[i % 3]}" for i in range(60))]))
    policy = file("policy.toml", "delta = 1e-5\n[levels]\nstrict = 1\nopen = {epsilon = 3, delta = 1e-6}\npublic = inf\n")
    code, out, _ = run("plan", "--budgets", path, "--policy", policy, *RUN, "--json")
    groups = json.loads(out)["groups"]
    assert code == 0
    assert [(group["epsilon"], group["delta"], group["holders"]) for group in groups] == [(1, 1e-5, 20), (3, 1e-6, 20), ("inf", 1e-5, 20)]


def test_the_written_plan_is_the_printed_one_and_reads_back(run, tmp_path):
    path = tmp_path / "plan.json"
    code, out, err = run("plan", *SMALL, "--epsilon", "1,inf", "--out", path, "--json")
    assert (code, err) == (0, "")
    assert json.loads(path.read_text()) == json.loads(out)
    plan = sartor.Plan.load(path)
    assert plan.epsilon.tolist() == [1, math.inf]
    assert plan.to_json() == json.loads(out)


def test_neither_table_nor_document_nor_file_shows_a_holder(run, file, tmp_path):
    rows = ["Ottilie,3.1415926", *(f"h{i},{1 + i / 8}" for i in range(29)), *(f"g{i},7.25" for i in range(10))]
    budgets = file("budgets.csv", "\n".join(["holder,epsilon", *rows]))
    path = tmp_path / "plan.json"
    for form in ([], ["--json"]):
        code, out, err = run("plan", "--budgets", budgets, "--delta", "1e-5", *RUN, "--out", path, *form)
        assert code == 0
        assert "7.25" in out
        assert "fewer than 10 holders merged" in err
        assert "--all-groups" in err
        for text in (out, err, path.read_text()):
            assert "3.14" not in text
            assert "Ottilie" not in text


def test_every_group_is_written_for_the_owner_alone(run, file, tmp_path):
    budgets = file("budgets.csv", "holder,epsilon\n" + "\n".join(f"h{i},{1 + i / 8}" for i in range(30)))
    path = tmp_path / "plan.json"
    code, out, err = run("plan", "--budgets", budgets, "--delta", "1e-5", *RUN, "--out", path, "--all-groups", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["merged"] is True
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sartor.Plan.load(path).epsilon.tolist() == [1 + i / 8 for i in range(30)]


# --- bad input ---


def refused(code, out, err):
    """Exit code 2, nothing on stdout, one sentence on stderr."""
    return code == 2 and out == "" and re.fullmatch(r"error: \S[^\n]*\n", err) is not None


BAD = {
    "no budgets": (RUN, "either --epsilon"),
    "shares and a file": ([*SMALL, "--budgets", "budgets.csv"], "give only one"),
    "no number": ([*SMALL, "--epsilon", "1,two"], "--epsilon takes numbers"),
    "no numbers at all": ([*SMALL, "--epsilon", ""], "--epsilon takes numbers"),
    "no share number": ([*SMALL, "--share", "half,half"], "--share takes numbers"),
    "shares missing": (without(SMALL, "--share"), "--share"),
    "shares short of everybody": ([*SMALL, "--share", ".5,.4"], "add up to 0.9"),
    "one share for two": ([*SMALL, "--share", "1"], "2 epsilons but 1 share:"),
    "half a share for two": ([*SMALL, "--share", "0.5"], "2 epsilons but 1 share:"),
    "no holders": ([*SMALL, "--holders", "0"], "number of holders"),
    "negative holders": ([*SMALL, "--holders", "-3"], "number of holders"),
    "more holders than fit": ([*SMALL, "--holders", "1000000000000000000"], "holders"),
    "holders missing": (without(SMALL, "--holders"), "--holders"),
    "delta missing": (without(SMALL, "--delta"), "--delta"),
    "delta of no number": ([*SMALL, "--delta", "tiny"], "--delta takes numbers"),
    "delta of zero": ([*SMALL, "--delta", "0"], "delta must lie"),
    "delta of one": ([*SMALL, "--delta", "1"], "delta must lie"),
    "three deltas for two": ([*SMALL, "--delta", "1e-5,1e-5,1e-5"], "2 epsilons but 3 deltas"),
    "epsilon of zero": ([*SMALL, "--epsilon", "0,1"], "zero"),
    "negative epsilon": ([*SMALL, "--epsilon=-1,1"], "negative"),
    "epsilon of nan": ([*SMALL, "--epsilon", "nan,1"], "not a number"),
    "unknown scheme": ([*SMALL, "--scheme", "best"], 'no scheme "best"'),
    "unknown accountant": ([*SMALL, "--accountant", "mine"], 'no accountant "mine"'),
    "batch of everybody and more": ([*SMALL, "--batch", "101"], "cannot be drawn from 100 holders"),
    "batch of nothing": ([*SMALL, "--batch", "0"], "cannot be drawn"),
    "batch of nan": ([*SMALL, "--batch", "nan"], "cannot be drawn"),
    "batch missing": (without(SMALL, "--batch"), "--batch"),
    "steps missing": (without(SMALL, "--steps"), "--steps"),
    "no steps": ([*SMALL, "--steps", "0"], "steps must be a whole number"),
    "half a step": ([*SMALL, "--steps", "1.5"], "--steps"),
    "more steps than can be counted": ([*SMALL, "--steps", "99999999999999999999"], "steps"),
    "clip of zero": ([*SMALL, "--clip", "0"], "clip must be positive"),
    "infinite clip": ([*SMALL, "--clip", "inf"], "clip must be positive"),
    "whole reserve": ([*SMALL, "--reserve", "1"], "reserve"),
    "mix of another scheme": ([*SMALL, "--mix", ".5"], "no option mix"),
    "mix beyond one": ([*SMALL, "--scheme", "hybrid", "--mix", "1.5"], "mix"),
    "mix and its ceiling": ([*SMALL, "--scheme", "hybrid", "--mix", ".5", "--max-excess", ".1"], "either mix or max_excess"),
    "threshold missing": ([*SMALL, "--scheme", "exclude"], "needs a threshold"),
    "threshold above all": ([*SMALL, "--scheme", "exclude", "--threshold", "9"], "nobody is left"),
    "unknown order": ([*SMALL, "--scheme", "sequential", "--order", "random"], "strictest-first"),
    "public rate beyond one": ([*SMALL, "--public-rate", "2"], "public_rate"),
    "policy without a file": ([*SMALL, "--policy", "policy.toml"], "--policy"),
    "negative seed": ([*SMALL, "--seed", "-1"], "seed"),
    "unknown option": ([*SMALL, "--stps", "3"], "--stps"),
    "option without a value": ([*SMALL, "--clip"], "--clip"),
    "stray argument": ([*SMALL, "more"], "more"),
    "unknown filter": ([*SMALL, "--filter", "natural"], "--filter is one of ladder, renyi"),
    "refresh without a filter": ([*SMALL, "--refresh", "3"], "--refresh goes with --filter"),
    "full steps without a filter": ([*SMALL, "--full-steps", "3"], "--full-steps goes with a filter"),
    "ladder without a filter": ([*SMALL, "--ladder", "1,2"], "--ladder goes with --filter ladder"),
    "ladder of another filter": ([*SMALL, "--filter", "renyi", "--ladder", "1,2"], "--ladder goes with --filter ladder"),
    "no refresh": ([*SMALL, "--filter", "ladder", "--refresh", "0"], "--refresh must be 1 or more"),
    "negative full steps": ([*SMALL, "--filter", "ladder", "--full-steps", "-1"], "--full-steps must be 1 or more"),
    "more full steps than steps": ([*SMALL, "--filter", "ladder", "--full-steps", "51"], "from 1 to the 50 steps"),
    "ladder of no numbers": ([*SMALL, "--filter", "ladder", "--ladder", "low,high"], "--ladder takes numbers"),
    "ladder of fractions": ([*SMALL, "--filter", "ladder", "--ladder", "1,2.5"], "--ladder takes whole numbers"),
    "ladder without an end": ([*SMALL, "--filter", "ladder", "--ladder", "1,inf"], "--ladder takes whole numbers"),
    "ladder that descends": ([*SMALL, "--filter", "ladder", "--ladder", "2,1"], "ascending"),
    "ladder of nothing": ([*SMALL, "--filter", "ladder", "--ladder", "0,1"], "ascending"),
    "ladder beyond what is counted": ([*SMALL, "--filter", "ladder", "--ladder", "1,1e30"], "at most 1e+09"),
    "filter by another accountant": ([*SMALL, "--accountant", "pld", "--filter", "renyi"], "judged by the accountant rdp"),
    "filter for turns": ([*SMALL, "--filter", "ladder", "--scheme", "sequential"], "a turn of its own"),
    "filter within an excess": ([*SMALL, "--filter", "ladder", "--scheme", "hybrid", "--max-excess", ".1"], "max_excess"),
    "filter and a batch of nothing": ([*SMALL, "--filter", "ladder", "--batch", "0"], "cannot be drawn"),
    "filter and no steps": ([*SMALL, "--filter", "ladder", "--steps", "0"], "steps must be a whole number"),
    "filter of public records": ([*SMALL, "--filter", "ladder", "--epsilon", "inf,inf"], "nothing for a filter to protect"),
    "equal treatment without a filter": ([*SMALL, "--scheme", "equal"], "filter"),
    "an empty accountant": ([*SMALL, "--accountant", ""], "no accountant"),
    "file missing": (["--budgets", "missing.csv", *RUN], "missing.csv cannot be read"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
def test_bad_input_ends_with_one_sentence_and_exit_code_2(run, monkeypatch, tmp_path, case, form):
    monkeypatch.chdir(tmp_path)
    arguments, reason = BAD[case]
    code, out, err = run("plan", *form, *arguments)
    assert refused(code, out, err)
    assert reason in err


BAD_FILES = {
    "empty": ("", None, "needs the columns"),
    "header alone": ("holder,epsilon\n", None, "no rows"),
    "no epsilon": ("holder,amount\nOttilie,3.1415926\n", None, "needs the columns"),
    "no number": ("holder,epsilon\nOttilie,3.1415926x\n", None, "no number"),
    "twice": ("holder,epsilon\nOttilie,3.1415926\nOttilie,1\n", None, "more than once"),
    "both": ("holder,epsilon,level\nOttilie,3.1415926,strict\n", None, "both an epsilon and a level"),
    "not text": (b"holder,epsilon\nOttilie,\xff\n", None, "not a CSV"),
    "levels without policy": ("holder,level\nOttilie,strict\n", None, "give the policy"),
    "unknown level": ("holder,level\nOttilie,lax\n", "delta = 1e-5\n[levels]\nstrict = 1\n", "chose a level"),
    "policy that is none": ("holder,level\nOttilie,strict\n", "strict: 1", "not TOML"),
    "policy without levels": ("holder,level\nOttilie,strict\n", "delta = 1e-5\n", "no table"),
    "policy without delta": ("holder,level\nOttilie,strict\n", "[levels]\nstrict = 1\n", "no delta"),
    "policy of words": ("holder,level\nOttilie,strict\n", 'delta = 1e-5\n[levels]\nstrict = "high"\n', "strict"),
    "delta of words": ("holder,level\nOttilie,strict\n", 'delta = "low"\n[levels]\nstrict = 1\n', "delta"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_ends_with_one_sentence_and_exit_code_2(run, file, case):
    content, policy, reason = BAD_FILES[case]
    options = [] if policy is None else ["--policy", file("policy.toml", policy)]
    code, out, err = run("plan", "--budgets", file("budgets.csv", content), *options, "--delta", "1e-5", *RUN)
    assert refused(code, out, err)
    assert reason in err
    assert "Ottilie" not in err
    assert "3.14" not in err


@pytest.mark.parametrize("options", [["--share", "1"], ["--holders", "3"], ["--delta", "1e-5,1e-6"]])
def test_a_file_of_budgets_leaves_nothing_else_to_say(run, file, options):
    assert refused(*run("plan", "--budgets", file("budgets.csv", "holder,epsilon\nana,1\n"), *options, *RUN))


def test_a_plan_that_cannot_be_written_is_not_printed_either(run, tmp_path):
    code, out, err = run("plan", *SMALL, "--out", tmp_path / "missing" / "plan.json", "--json")
    assert refused(code, out, err)
    assert "cannot be written" in err


def test_the_program_refuses_bad_input_without_a_traceback():
    done = program("plan", *SMALL, "--batch", "101")
    assert refused(done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr


def test_an_unknown_command_is_refused(run):
    assert refused(*run("tailor"))
