# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from flyops.domain import symptoms


def test_api_mismatch():
    log = "x\nNVRM: API mismatch: the client has the version 580.126.09, but\nNVRM: this kernel module has the version 580.95.05.  Please\n"
    assert symptoms.api_mismatch(log) == ("580.126.09", "580.95.05")
    assert symptoms.api_mismatch("nvidia-uvm: Loaded the UVM driver\n") is None


@pytest.mark.parametrize("code", sorted(set(symptoms.CUDA_ERRORS) - {0}))
def test_cuda_errors_have_cause_and_remedy(code):
    assert str(code) in symptoms.cuda_error(code)
    assert "to do:" in symptoms.cuda_error(code)


def test_unknown_cuda_error():
    assert "CUresult" in symptoms.cuda_error(42)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", "libraries"),
        ("Failed to initialize NVML: Unknown Error", "daemon-reload"),
        ("No devices were found", "nodes missing"),
        ("GPU access blocked by the operating system", "/proc"),
        ("couldn't find libnvidia-ml.so library in your system", "ldconfig"),
        ("all fine", ""),
    ],
)
def test_hints(text, says):
    assert says in symptoms.hint(text)
    assert bool(symptoms.hint(text)) is bool(says)
