"""The painter's scripts as one, as a report holds them."""

from __future__ import annotations

import re

import numpy as np

from ampwatch.report.painter import FOLDER, bundled, line_style
from ampwatch.report.painter.message import pack


def test_a_bundle_holds_each_script_once_after_what_it_imports_and_imports_nothing():
    text = bundled("report")
    names = re.findall(r"^const from_(\w+) = ", text, re.MULTILINE)
    assert len(names) == len(set(names))
    assert names[-1] == "report"
    assert {"chart", "layout", "paint", "hover", "message"} < set(names)
    assert not re.search(r"^(import|export) |</script", text, re.MULTILINE)
    for at, name in enumerate(names):
        used = re.findall(
            r"} = from_(\w+);", text.split(f"const from_{name} = ")[1].split("})();")[0]
        )
        assert set(used) <= set(names[:at])


def test_every_import_of_a_script_is_exported_where_it_comes_from():
    for file in FOLDER.glob("*.js"):
        for names, other in re.findall(
            r'import \{([^}]+)\} from "\./(\w+)\.js"', file.read_text("utf-8")
        ):
            exported = re.findall(
                r"^export (?:const|function|class) (\w+)",
                (FOLDER / f"{other}.js").read_text("utf-8"),
                re.MULTILINE,
            )
            assert {name.strip() for name in names.split(",")} <= set(exported)


def test_the_arrays_of_a_message_are_aligned():
    message = pack({"component": "chart"}, {"a": np.arange(3, dtype=np.float32), "b": np.arange(2)})
    assert len(message) % 8 == 0


def test_of_many_runs_each_line_looks_another_way():
    styles = [line_style(number) for number in range(18)]
    assert len(set(styles)) == 18
