"""The painter's scripts as one, as a report holds them."""

from __future__ import annotations

import dataclasses
import re
import types
from itertools import product

import numpy as np
import pytest
from written_runs import write_run

from ampwatch import diagnose, open_run
from ampwatch.diagnosis import Severity
from ampwatch.diagnosis.findings import FindingStatus
from ampwatch.follow import State
from ampwatch.report.letter import letter_of
from ampwatch.report.overview_chart import Shown, marks_of
from ampwatch.report.painter import FOLDER, PALETTE, SEVERITY_COLOR, bundled, line_style
from ampwatch.report.painter.message import pack


def test_a_bundle_holds_each_script_once_after_what_it_imports_and_imports_nothing():
    text = bundled("report")
    names = re.findall(r"^const from_(\w+) = ", text, re.MULTILINE)
    assert len(names) == len(set(names))
    assert names[-1] == "report"
    assert {"chart", "chart_drawing", "legend_and_toolbar", "lines", "message"} < set(names)
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


@pytest.mark.parametrize("theme", PALETTE)
def test_text_of_every_colour_can_be_read_on_the_page_and_on_every_pale_tone(theme):
    colors = {name: _channels(text) for name, text in PALETTE[theme].items()}
    page = colors["page"]
    tones = {name: color for name, color in colors.items() if name not in {"page", "side", "grid"}}
    marks = {*SEVERITY_COLOR.values(), "healthy", "scale"}
    pale = {name: 0.14 * colors[name] + 0.86 * page for name in marks}
    grounds = {"page": page, "side": colors["side"]} | pale
    poor = [
        (tone, ground)
        for tone, ground in product(tones, grounds)
        if _contrast(tones[tone], grounds[ground]) < 4.5
    ]
    assert poor == []


def _channels(text: str) -> np.ndarray:
    return np.array([int(text[at : at + 2], 16) for at in (1, 3, 5)]) / 255


def _contrast(one: np.ndarray, other: np.ndarray) -> float:
    """WCAG's ratio of relative luminances."""
    light = sorted(_luminance(color) for color in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


def _luminance(color: np.ndarray) -> float:
    linear = np.where(color <= 0.04045, color / 12.92, ((color + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_where_single_steps_count_a_mark_has_these_and_no_other(tmp_path):
    seen = diagnose(open_run(write_run(tmp_path, skipped=30)))
    head = dataclasses.replace(seen.findings[0], first_step=20, last_step=90, steps=(60, 90))
    diagnosis = dataclasses.replace(seen, findings=(head,))
    [mark] = marks_of(Shown(("loss",), (0, 129), 30, False, diagnosis, None))
    assert mark.steps == (20, 60, 90)


def test_a_lane_goes_on_as_long_as_its_finding_stands(tmp_path):
    seen = diagnose(open_run(write_run(tmp_path, skipped=30)))
    # A layer is looked at every so many steps; what is over is over, however short ago.
    ends = {FindingStatus.STANDS: (20, 129), FindingStatus.HEALS: (126, 126)}
    for standing, (last, end) in ends.items():
        head = dataclasses.replace(
            seen.findings[0], first_step=10, last_step=last, standing=standing
        )
        diagnosis = dataclasses.replace(seen, findings=(head,))
        [mark] = marks_of(Shown(("loss",), (0, 129), 30, False, diagnosis, None))
        assert (mark.first, mark.last) == (10, end)


def test_every_code_on_the_chart_has_its_words_in_the_band(tmp_path):
    from verdict_band import verdict_band

    run = open_run(write_run(tmp_path, skipped=30))
    seen = diagnose(run)
    head = next(f for f in seen.findings if f.first_step)
    codes = [("AMP301", head.code), ("AMP302", head.code), ("AMP401", None), ("AMP204", "AMP401")]
    more = [
        dataclasses.replace(
            head, code=code, name=f"fault-{code}", because_of=because, severity=Severity.ERROR
        )
        for code, because in codes
    ]
    diagnosis = dataclasses.replace(seen, findings=(head, *more))
    marks = list(marks_of(Shown(("loss",), (0, 129), 30, False, diagnosis, None)))
    look = types.SimpleNamespace(
        diagnosis=diagnosis, is_live=False, state=State.ENDED, info=run.info,
        last_time_ns=run.last_time_ns, path=str(tmp_path), curves=types.SimpleNamespace(),
        proof=lambda: None, letter=lambda: letter_of("x", run, diagnosis), ending=lambda: "",
    )  # fmt: skip
    shown = verdict_band(look)
    assert [mark.label for mark in marks] == [
        f"{head.code} {head.name.replace('-', ' ')}",
        "AMP301 fault AMP301", "AMP401 fault AMP401", "AMP204 fault AMP204",
    ]  # fmt: skip
    assert all(mark.label.split()[0] in shown for mark in marks)
