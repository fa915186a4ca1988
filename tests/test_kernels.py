"""`make test-kernels` runs what computes once more, by other kernels of NumPy and PyTorch than the best ones of this computer."""

import os

import pytest


@pytest.mark.skipif("NPY_DISABLE_CPU_FEATURES" not in os.environ, reason="make test-kernels runs it")
def test_numpy_computes_without_the_features_that_were_switched_off():
    from numpy._core._multiarray_umath import __cpu_features__ as here

    assert not any(here[name] for name in os.environ["NPY_DISABLE_CPU_FEATURES"].split())


@pytest.mark.skipif("ATEN_CPU_CAPABILITY" not in os.environ, reason="make test-kernels runs it")
def test_pytorch_computes_by_the_kernels_that_were_asked_for():
    import torch

    assert torch.backends.cpu.get_cpu_capability() == os.environ["ATEN_CPU_CAPABILITY"].upper()
