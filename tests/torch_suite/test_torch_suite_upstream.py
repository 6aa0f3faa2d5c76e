"""PyTorch's own tests of gradient scaling, with every scaler attached."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import children
import pytest

import ampwatch

RUNNER = Path(__file__).with_name("run_upstream.py")
CHECKOUT = Path(ampwatch.__file__).parents[1]


@pytest.mark.slow_upstream
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    not os.environ.get("PYTORCH_TEST_DIR"),
    reason="PyTorch's tests are not in its wheel: set PYTORCH_TEST_DIR to its source's test folder",
)
@pytest.mark.skipif(
    not importlib.util.find_spec("expecttest"), reason="PyTorch's tests need `expecttest`"
)
def test_pytorchs_own_gradient_scaling_tests_pass_with_every_scaler_attached():
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(RUNNER)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_folder_without_pytorchs_tests_is_refused_with_a_sentence(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = children.run(RUNNER, tmp_path, env=environment)
    assert done.returncode == 2
    assert "pass PYTORCH/test" in done.stderr
