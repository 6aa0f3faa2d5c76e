"""The user's own values: all of them are there, at their steps, however long the run."""

from __future__ import annotations

import address
import numpy as np
import pytest
import run_chart
from address import Address
from hypothesis import example, given
from hypothesis import strategies as st
from open_runs import OpenRuns
from run_chart import picture_of
from user_value_curves import UserValues, group_names
from written_runs import fresh_id, write_run

from ampwatch import codec, store
from ampwatch.follow import follow
from ampwatch.rows import Table


def begin(folder):
    path = store.create_run(folder, store.RunInfo(id=fresh_id("x"), name="x"))
    return path, store.RankWriter(path, 0)


def log(writer, step, name, values):
    step = np.asarray(step)
    rows = {"step": step, "name": [name] * len(step), "value": np.asarray(values, float)}
    writer.append(codec.encode(Table.EXTRAS, rows))


def test_every_value_is_drawn_at_its_step_and_what_is_not_finite_is_counted(tmp_path):
    path, writer = begin(tmp_path)
    log(writer, [0, 50, 100, 150], "val/loss", [3.0, 2.0, np.nan, 1.0])
    log(writer, range(200), "reward", np.arange(200) % 7)
    writer.close()
    values = UserValues(follow(path), None)
    found = values.read()
    assert list(found) == ["val/loss", "reward"]
    loss = found["val/loss"]
    assert (loss.count, loss.odd_count, loss.odd.first.tolist()) == (4, 1, [100])
    assert loss.last == (150, 1.0)
    line = values.line("reward", None)
    assert line.x.tolist() == list(range(200))
    assert line.y.tolist() == [float(step % 7) for step in range(200)]


def test_a_live_runs_values_grow_into_what_they_are_when_read_at_once(tmp_path):
    path, writer = begin(tmp_path)
    follower = follow(path)
    grown, chance = UserValues(follower, None), np.random.default_rng(1)
    for first in range(0, 30_000, 1000):
        step = np.arange(first, first + 1000)
        log(writer, step, "a", chance.standard_normal(1000))
        log(writer, step[::100], "b", step[::100])
        follower.refresh()
        grown.read()
    writer.close()
    anew = UserValues(follow(path), None)
    anew.read()
    for name in ("a", "b"):
        one, other = grown.line(name, None), anew.line(name, None)
        assert np.array_equal(one.x, other.x)
        assert np.array_equal(one.y, other.y, equal_nan=True)


def test_a_spike_of_a_long_run_stays_and_a_span_of_it_has_every_row(tmp_path):
    path, writer = begin(tmp_path)
    count = 600_000
    step, truth = np.arange(count), np.sin(np.arange(count)).astype(np.float32)
    truth[123_456] = 99.0
    for at in range(0, count, 50_000):
        log(writer, step[at : at + 50_000], "a", truth[at : at + 50_000])
    writer.close()
    values = UserValues(follow(path), None)
    value = values.read()["a"]
    assert value.width > 4
    assert len(value.points[0]) < 70_000
    whole = values.line("a", None)
    assert whole.x[int(np.nanargmax(whole.y))] == 123_456
    near = values.line("a", (300_000, 300_500))
    shown = (near.x >= 300_000) & (near.x <= 300_500)
    assert near.x[shown].tolist() == list(range(300_000, 300_501))
    assert np.array_equal(near.y[shown], truth[300_000:300_501])


def test_a_title_says_the_newest_value_and_where_it_was_not_finite(tmp_path):
    path = write_run(tmp_path)
    writer = store.RankWriter(path, 0)
    log(writer, [0, 10, 20], "val/loss", [3.0, np.inf, 1.25])
    log(writer, [0, 10, 20], "tokens", [512, 1024, 1536])
    writer.close()
    look = OpenRuns().snapshot_of(str(path))
    picture = picture_of(look, Address())
    titles = {p.strokes[0].label: "".join(words for words, _ in p.title) for p in picture.panels}
    assert titles["val/loss"] == "val/loss, 1.25 at step 20, 1 value not finite, first at step 10"
    assert [axis.label for axis in picture.axes] == ["time", "clock", "tokens"]
    chosen = picture_of(look, Address(values="tokens"))
    labels = [panel.strokes[0].label for panel in chosen.panels]
    assert "tokens" in labels
    assert "val/loss" not in labels


def test_a_figure_of_a_framework_has_a_plain_title_its_name_and_its_unit(tmp_path):
    path, writer = begin(tmp_path)
    log(writer, [0, 1], "actor/ppo_kl", [0.25, 0.5])
    log(writer, [0, 1], "actor/pg_clipfrac", [0.0, 0.125])
    writer.close()
    picture = picture_of(OpenRuns().snapshot_of(str(path)), Address())
    drawn = {panel.strokes[0].label: panel for panel in picture.panels}
    words = {name: "".join(words for words, _ in panel.title) for name, panel in drawn.items()}
    assert words["actor/ppo_kl"] == (
        "KL divergence of an update, nats (actor/ppo_kl), 0.5 at step 1"
    )
    assert words["actor/pg_clipfrac"] == (
        "Share of the policy's updates that were clipped (actor/pg_clipfrac), 0.125 at step 1"
    )
    assert (drawn["actor/ppo_kl"].kind, drawn["actor/ppo_kl"].unit) == ("number", "nats")
    assert (drawn["actor/pg_clipfrac"].kind, drawn["actor/pg_clipfrac"].unit) == ("share", "")


def test_a_reward_is_drawn_first_then_what_rules_read(tmp_path):
    path, writer = begin(tmp_path)
    for name in ("mine", "yours", "actor/entropy", "actor/ppo_kl", "critic/rewards/mean"):
        log(writer, [0, 1], name, [1.0, 2.0])
    writer.close()
    drawn = run_chart.chosen_names(OpenRuns().snapshot_of(str(path)), None)
    assert drawn == ["critic/rewards/mean", "actor/ppo_kl", "mine"]


def test_names_stand_in_groups_by_what_is_before_their_last_slash():
    assert group_names(["loss", "val/a", "train/a", "val/b", "deep/er/x"]) == {
        "": ["loss"],
        "val": ["val/a", "val/b"],
        "train": ["train/a"],
        "deep/er": ["deep/er/x"],
    }


@given(st.lists(st.text(min_size=1, max_size=30), unique=True, max_size=run_chart.MOST))
@example(["-"])
@example([])
def test_any_choice_of_names_survives_the_address(names):
    class Values:
        def read(self):
            return dict.fromkeys(["another", *names])

    class Look:
        values = Values()

    text = address.names_text(names)
    kept = [name for name in run_chart.chosen_names(Look(), text) if name in names]
    assert kept == names


@pytest.mark.parametrize(("text", "drawn"), [(None, 3), ("-", 0), ("gone,a", 1)])
def test_without_a_choice_the_first_few_are_drawn(tmp_path, text, drawn):
    path, writer = begin(tmp_path)
    for name in "abcde":
        log(writer, [0, 1], name, [1.0, 2.0])
    writer.close()
    look = OpenRuns().snapshot_of(str(path))
    assert len(run_chart.chosen_names(look, text)) == drawn
