"""Exposures: plain values that survive JSON, refuse nonsense, and can be checked with another accountant."""

import dataclasses
import json
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor import Composition, Included, SampledGaussian, SampledRecords, exposure_from_json
from sartor.accounting import epsilon

rates = st.floats(0, 1)
gaussians = st.builds(
    SampledGaussian, rate=rates, noise_multiplier=st.floats(0, allow_nan=False, allow_infinity=True), steps=st.integers(0, 10**9)
)
several = st.builds(
    SampledRecords,
    records=st.integers(1, 10**6),
    rate=rates,
    noise_multiplier=st.floats(0, allow_nan=False, allow_infinity=True),
    steps=st.integers(0, 10**9),
)
exposures = st.recursive(
    gaussians | several,
    lambda inner: st.builds(Composition, st.lists(inner, max_size=4)) | st.builds(Included, rates, inner),
    max_leaves=12,
)

STEP = SampledGaussian(rate=0.01, noise_multiplier=1.2, steps=500)
EXPOSURES = {
    "sampled": STEP,
    "one step": SampledGaussian(0.2, 0.8, 1),
    "every step": SampledGaussian(1.0, 12.0, 40),
    "composition": Composition((STEP, SampledGaussian(0.05, 3.0, 100), SampledGaussian(1.0, 20.0, 3))),
    "nested": Composition((Composition((STEP,)), SampledGaussian(0.0, 1.0, 3), SampledGaussian(0.02, 2.0, 200))),
}


@settings(deadline=None)
@given(exposure=exposures)
def test_an_exposure_survives_json(exposure):
    written = json.dumps(exposure.to_json(), allow_nan=False)
    read = exposure_from_json(json.loads(written))
    assert read == exposure
    assert hash(read) == hash(exposure)
    assert json.dumps(read.to_json()) == written


def test_infinite_noise_is_the_string_inf():
    quiet = SampledGaussian(0.1, math.inf, 10)
    assert json.loads(json.dumps(quiet.to_json()))["noise_multiplier"] == "inf"
    assert exposure_from_json(json.loads('{"kind": "sampled_gaussian", "rate": 0.1, "noise_multiplier": "inf", "steps": 10}')) == quiet


def test_numbers_from_arrays_survive_json():
    exposure = SampledGaussian(np.float64(0.25), np.float64(2.0), np.int64(7))
    assert exposure_from_json(json.loads(json.dumps(exposure.to_json()))) == SampledGaussian(0.25, 2.0, 7)
    of_three = SampledRecords(np.int64(3), np.float64(0.25), np.float64(2.0), np.int64(7))
    assert exposure_from_json(json.loads(json.dumps(of_three.to_json()))) == SampledRecords(3, 0.25, 2.0, 7)


@pytest.mark.parametrize("exposure", [STEP, SampledRecords(2, 0.01, 1.2, 500), Composition((STEP,)), Included(0.5, STEP)])
def test_an_exposure_cannot_be_changed(exposure):
    name = dataclasses.fields(exposure)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(exposure, name, getattr(exposure, name))


def test_a_composition_keeps_no_hold_on_the_callers_list():
    parts = [STEP]
    composition = Composition(parts)
    parts.append(STEP)
    assert composition == Composition((STEP,))


@pytest.mark.parametrize("rate", [-0.1, 1.0001, math.nan, math.inf])
def test_a_rate_is_a_probability(rate):
    with pytest.raises(ValueError, match="rate must lie in"):
        SampledGaussian(rate, 1.0, 1)
    with pytest.raises(ValueError, match="rate must lie in"):
        SampledRecords(2, rate, 1.0, 1)
    with pytest.raises(ValueError, match="probability must lie in"):
        Included(rate, STEP)


@pytest.mark.parametrize("noise", [-1e-9, -math.inf, math.nan])
def test_noise_is_not_negative(noise):
    with pytest.raises(ValueError, match="noise_multiplier must be 0 or more"):
        SampledGaussian(0.1, noise, 1)
    with pytest.raises(ValueError, match="noise_multiplier must be 0 or more"):
        SampledRecords(2, 0.1, noise, 1)


@pytest.mark.parametrize("steps", [-1, 2.5, math.nan, math.inf])
def test_steps_are_counted_in_whole_numbers(steps):
    with pytest.raises(ValueError, match="steps must be a whole number"):
        SampledGaussian(0.1, 1.0, steps)
    with pytest.raises(ValueError, match="steps must be a whole number"):
        SampledRecords(2, 0.1, 1.0, steps)


@pytest.mark.parametrize("records", [0, -1, 2.5, 10**6 + 1, math.nan, math.inf])
def test_records_are_counted_in_whole_numbers(records):
    with pytest.raises(ValueError, match="records must be a whole number from 1 to 1,000,000"):
        SampledRecords(records, 0.1, 1.0, 1)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({}, "kind"),
        ([], "not an exposure"),
        (None, "not an exposure"),
        ({"kind": "laplace"}, '"laplace" is not a kind'),
        ({"kind": "sampled_gaussian", "rate": 0.1, "noise_multiplier": 1.0}, "steps"),
        ({"kind": "sampled_gaussian", "rate": "often", "noise_multiplier": 1.0, "steps": 1}, "not an exposure"),
        ({"kind": "sampled_gaussian", "rate": 2, "noise_multiplier": 1.0, "steps": 1}, "rate must lie in"),
        ({"kind": "sampled_gaussian", "rate": 0.1, "noise_multiplier": None, "steps": 1}, "not an exposure"),
        ({"kind": "sampled_gaussian", "rate": 0.1, "noise_multiplier": "nan", "steps": 1}, "not an exposure"),
        ({"kind": "sampled_records", "rate": 0.1, "noise_multiplier": 1.0, "steps": 1}, "records"),
        ({"kind": "sampled_records", "records": 0, "rate": 0.1, "noise_multiplier": 1.0, "steps": 1}, "records must be"),
        ({"kind": "sampled_records", "records": "many", "rate": 0.1, "noise_multiplier": 1.0, "steps": 1}, "not an exposure"),
        ({"kind": "composition", "parts": 3}, "not an exposure"),
        ({"kind": "composition", "parts": [{"kind": "included"}]}, "not an exposure"),
        ({"kind": "included", "probability": 0.5}, "exposure"),
    ],
)
def test_a_document_that_is_no_exposure_is_refused(document, reason):
    with pytest.raises(ValueError, match=reason):
        exposure_from_json(document)


@pytest.mark.parametrize("name", EXPOSURES)
def test_the_exported_event_costs_the_same_by_an_independent_renyi_accountant(name):
    exposure = EXPOSURES[name]
    theirs = RdpAccountant().compose(exposure.to_dp_event()).get_epsilon(1e-5)
    assert epsilon(exposure, 1e-5, "rdp").upper == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize("name", EXPOSURES)
def test_the_exported_event_costs_the_same_by_an_independent_pld_accountant(name):
    exposure = EXPOSURES[name]
    theirs = PLDAccountant(value_discretization_interval=1e-4).compose(exposure.to_dp_event()).get_epsilon(1e-5)
    ours = epsilon(exposure, 1e-5, "pld")
    assert ours.estimate == pytest.approx(theirs, rel=0.01)
    assert ours.upper == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize("nothing", [SampledGaussian(0.0, 1.0, 5), SampledGaussian(0.5, 1.0, 0), SampledGaussian(0.5, math.inf, 5)])
def test_an_exposure_to_nothing_exports_as_nothing(nothing):
    assert RdpAccountant().compose(nothing.to_dp_event()).get_epsilon(1e-5) == 0
    assert epsilon(nothing, 1e-5).upper == 0


def test_an_inclusion_exports_its_coin_and_what_follows():
    assert Included(0.3, STEP).to_dp_event() == dp_accounting.PoissonSampledDpEvent(0.3, STEP.to_dp_event())


# --- several records of one holder ---


def test_several_records_export_as_the_binomial_mixture_of_gaussians():
    whole = SampledRecords(3, 0.2, 1.5, 40).to_dp_event()
    step = whole.event
    assert isinstance(whole, dp_accounting.SelfComposedDpEvent)
    assert whole.count == 40
    assert step.standard_deviation == 1.5
    assert step.sensitivities == [0, 1, 2, 3]
    np.testing.assert_allclose(step.sampling_probs, [0.512, 0.384, 0.096, 0.008], rtol=1e-14)


def test_probabilities_that_are_none_are_not_exported():
    step = SampledRecords(1_000, 1e-6, 1.0, 1).to_dp_event().event
    assert min(step.sampling_probs) > 0
    assert len(step.sensitivities) == len(step.sampling_probs) < 1_000
    PLDAccountant(value_discretization_interval=0.01).compose(step)


def test_one_record_is_a_sampled_gaussian_and_records_that_always_enter_are_one_larger_vector():
    assert SampledRecords(1, 0.01, 1.2, 500).plain == STEP
    assert SampledRecords(1, 0.01, 1.2, 500).to_dp_event() == STEP.to_dp_event()
    assert SampledRecords(5, 1.0, 20.0, 3).plain == SampledGaussian(1.0, 4.0, 3)
    assert SampledRecords(5, 1.0, 20.0, 3).to_dp_event() == SampledGaussian(1.0, 4.0, 3).to_dp_event()
    assert SampledRecords(2, 0.01, 1.2, 500).plain is None


@pytest.mark.parametrize("nothing", [SampledRecords(5, 0.0, 1.0, 5), SampledRecords(5, 0.5, 1.0, 0), SampledRecords(5, 0.5, math.inf, 5)])
def test_several_records_in_nothing_export_as_nothing(nothing):
    assert nothing.to_dp_event() == dp_accounting.NoOpDpEvent()
