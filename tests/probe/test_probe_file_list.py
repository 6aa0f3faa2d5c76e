"""The package's docstring lists every file of it, once, by what it does."""

import re
from pathlib import Path

from ampwatch import probe


def test_the_list_of_files_names_each_file_once():
    listed = re.findall(r"^- [^:]+:(.+?)(?=^-|\Z)", probe.__doc__ or "", re.DOTALL | re.MULTILINE)
    named = sorted(name for line in listed for name in re.findall(r"\w+", line))
    files = (path.stem for path in Path(probe.__file__).parent.glob("*.py"))
    assert named == sorted(name for name in files if name != "__init__")
