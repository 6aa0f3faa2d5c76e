"""What a run says of a recorder's copy: its rows, and recorder.json beside run.json."""

from __future__ import annotations

import pytest
from store_samples import event, info, steps

from ampwatch import store
from ampwatch.store import COPY_FILE, CopyNote

STOPS = (
    "Rank 0: this copy stops before batch 8, without an end mark; what the trainer wrote after "
    "that is in the trainer's own log only."
)


@pytest.fixture
def copy(tmp_path):
    """A copy that holds the batches 0 to 2 and 6 to 7."""
    folder = store.create_run(tmp_path, info())
    writer = store.RankWriter(folder, 0)
    for sequence in (0, 1, 2, 6, 7):
        writer.append(steps(sequence, 1), sequence)
    writer.close()
    return folder


def notes_with(folder, note):
    store.write_copies(folder, {0: note})
    return store.open_run(folder).notes


def test_a_note_is_read_as_it_was_written(copy):
    notes = {0: CopyNote(gaps=((3, 6), (9, 10)), ended_at=12), 7: CopyNote()}
    store.write_copies(copy, notes)
    assert store.read_copies(copy) == notes


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"ranks": 1}', '{"ranks": {"0": {}}}', "[" * 100_000, '{"ranks": {"x": 1}}'),
        '{"ranks": {"0": {"gaps": [[Infinity, 3]], "ended_at": null}}}',
    ],
)
def test_a_damaged_note_is_none(copy, text):
    (copy / COPY_FILE).write_text(text)
    assert store.read_copies(copy) == {}
    assert store.open_run(copy).notes == ("Rank 0: batches 3 to 5 are not in this copy.",)


@pytest.mark.parametrize(
    ("lost", "sentences"),
    [
        ((), ["batches 3 to 5 are not"]),
        (((3, 6),), ["batches 3 to 5 are lost"]),
        (((4, 5),), ["batch 3 is not", "batch 5 is not", "batch 4 is lost"]),
        (((3, 4), (8, 9)), ["batches 4 to 5 are not", "batch 3 is lost", "batch 8 is lost"]),
    ],
)
def test_what_is_lost_for_good_is_told_from_what_may_still_come(copy, lost, sentences):
    found = notes_with(copy, CopyNote(lost, ended_at=8))
    assert len(found) == len(sentences)
    for note, sentence in zip(found, sentences, strict=True):
        assert note.startswith(f"Rank 0: {sentence} ")


def test_a_copy_without_its_trainers_end_says_where_it_stops(copy):
    assert notes_with(copy, CopyNote())[-1] == STOPS


def test_a_copy_that_is_still_filed_has_not_stopped(copy):
    with_writer = store.RankWriter(copy, 0)
    assert store.is_written(copy)
    assert STOPS not in notes_with(copy, CopyNote())
    with_writer.append(event("ended"), 8)
    with_writer.close()
    assert not store.is_written(copy)
    assert len(notes_with(copy, CopyNote(ended_at=9))) == 1


def test_a_writer_notices_that_its_files_were_taken_away(tmp_path):
    folder = store.create_run(tmp_path, info())
    writer = store.RankWriter(folder, 0)
    assert writer.is_in_place()
    (folder / "rank-0").rename(folder / "elsewhere")
    assert not writer.is_in_place()
    other = store.RankWriter(folder, 0)
    assert not writer.is_in_place()
    assert other.is_in_place()
    other.close()
    writer.close()
