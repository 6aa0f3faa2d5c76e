"""Run PyTorch's own gradient-scaling tests with every GradScaler they make attached.

    python tests/torch_suite/run_upstream.py PYTORCH_SOURCE/test [pytest arguments...]

or with $PYTORCH_TEST_DIR. Its test files are not part of an installed torch: take those of the same
version. Needs `expecttest`, as they do. Exit code 0: the tests passed and scalers were attached.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import ampwatch

FILES = ("test_torch.py", "test_cuda.py")
NAMES = "grad_scal or gradscaler"


class EveryScaler:
    """A pytest plugin: whatever GradScaler a test makes is watched until the test ends."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.attached = 0
        self.passed = 0
        self.not_restored: list[str] = []
        self._watched: list[tuple[Any, type, Any]] = []

    def patch(self) -> None:
        """From here on every GradScaler is attached as the last act of its construction."""
        original = torch.amp.GradScaler.__init__

        def __init__(scaler: Any, *args: Any, **kwargs: Any) -> None:
            original(scaler, *args, **kwargs)
            own_class = type(scaler)
            watch = ampwatch.attach(scaler, None, endpoint="off", log_dir=self.log_dir)
            self._watched.append((scaler, own_class, watch))
            self.attached += 1

        torch.amp.GradScaler.__init__ = __init__

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        """Close the watches of the test within it: what they leave behind is its failure."""
        try:
            return (yield)
        finally:
            for scaler, own_class, watch in self._watched:
                watch.close()
                if type(scaler) is not own_class:
                    self.not_restored.append(item.nodeid)
            self._watched.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count what passed; skips are no proof."""
        self.passed += report.when == "call" and report.passed


def run(test_dir: Path, arguments: list[str]) -> int:
    """Run what there is of the files; returns the exit code."""
    files = [str(test_dir / name) for name in FILES if (test_dir / name).is_file()]
    if not files:
        sys.stderr.write(f"{test_dir} holds neither of {', '.join(FILES)}: pass PYTORCH/test.\n")
        return 2
    os.environ["AMPWATCH_STRICT"] = "1"  # a failure of ours is the test's
    sys.path.insert(0, str(test_dir))
    with tempfile.TemporaryDirectory() as log_dir:
        plugin = EveryScaler(Path(log_dir))
        plugin.patch()
        # None of our own configuration: PyTorch's tests warn as they please.
        apart = ["-c", os.devnull, f"--rootdir={test_dir}", "-p", "no:cacheprovider", "-q"]
        code = pytest.main([*apart, "-k", NAMES, *files, *arguments], plugins=[plugin])
    print(f"{plugin.passed} tests passed with {plugin.attached} attached scalers")
    for nodeid in plugin.not_restored:
        print(f"not restored after close: {nodeid}")
    proved = plugin.passed and plugin.attached and not plugin.not_restored
    return int(code) or (0 if proved else 1)


if __name__ == "__main__":
    given = sys.argv[1:2] or [os.environ.get("PYTORCH_TEST_DIR", "")]
    sys.exit(run(Path(given[0]).absolute(), sys.argv[2:]))
