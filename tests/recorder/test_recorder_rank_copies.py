"""Which of a run's ranks are copies, and what tells them from a trainer's own log."""

import pytest
from recorder_parts import Here, Trainer, eventually, free_endpoint, until_acknowledged

from ampwatch import store
from ampwatch.codec import encode
from ampwatch.recorder.rank_copies import copy_in
from ampwatch.rows import Table


def test_a_folder_without_a_log_is_filled_and_not_taken_for_the_trainers_own(tmp_path, copies):
    with Here(copies) as recorder:
        trainer = Trainer(tmp_path / "log", recorder.endpoint)
        (store.create_run(copies, trainer.info) / "rank-0").mkdir()
        trainer.steps(range(50))
        until_acknowledged(trainer.sender, 50)
        assert trainer.close()
    assert store.open_run(copies / "run").steps.num_rows == 50


def test_a_copy_whose_notes_are_damaged_is_refused_until_it_is_moved_away(tmp_path, copies):
    endpoint = free_endpoint()
    trainer = Trainer(tmp_path / "log", endpoint).steps(range(5))
    with Here(copies, endpoint):
        until_acknowledged(trainer.sender, 5)
    notes = copies / "run" / store.COPY_FILE
    notes.write_bytes(notes.read_bytes()[:-4])
    trainer.steps(range(5, 8))
    with Here(copies, endpoint) as recorder:
        eventually(lambda: trainer.sender.stats.refused, trainer.sender.poll)
        assert f"{notes} is damaged" in recorder.notes[0]
        assert trainer.sender.stats.acknowledged == 5
        trainer.sender.close(timeout_s=0.0)
        trainer.log.close()
    (copies / "run").rename(tmp_path / "moved")
    with Here(copies, endpoint):
        trainer = Trainer(tmp_path / "log", endpoint)
        until_acknowledged(trainer.sender, 8)
        assert trainer.close()
    assert store.open_run(copies / "run").steps.num_rows == 8


def test_a_recorder_killed_as_it_makes_a_copys_folder_leaves_what_the_next_one_goes_on_with(
    tmp_path, monkeypatch
):
    class Killed(BaseException):
        pass

    def make_and_die(folder):
        folder.mkdir()
        (folder / "index").write_bytes(b"ampw")
        raise Killed

    info = store.RunInfo(id="ab" * 16, name="run")
    copy = copy_in(tmp_path, info, rank=0, head=0)
    monkeypatch.setattr("ampwatch.recorder.rank_copies.make_folder", make_and_die)
    with pytest.raises(Killed):
        copy.open()
    assert copy_in(tmp_path, info, rank=0, head=0).is_copy


def test_a_copy_that_was_let_go_still_takes_note_of_what_is_lost(tmp_path):
    copy = copy_in(tmp_path, store.RunInfo(id="ab" * 16, name="run"), rank=0, head=0)
    for number in (0, 3):
        copy.file(number, encode(Table.EXTRAS, {"step": [1], "name": ["x"], "value": [1.0]}))
    copy.close()
    assert copy.lose(1, 3)
    assert (copy.filed, list(copy.lost)) == (4, [(1, 3)])
    copy.close()


def test_a_copy_goes_on_from_a_note_whose_losses_overlap(tmp_path):
    """As an earlier recorder wrote it, which kept each loss as it came."""
    info = store.RunInfo(id="ab" * 16, name="run")
    copy = copy_in(tmp_path, info, rank=0, head=0)
    store.write_copies(copy.folder, {0: store.CopyNote(gaps=((0, 2), (1, 3), (3, 4), (7, 8)))})
    copy = copy_in(tmp_path, info, rank=0, head=0)
    copy.open()
    assert (copy.is_copy, copy.filed, list(copy.lost)) == (True, 4, [(0, 4), (7, 8)])
    assert not copy.lose(1, 4)
    copy.close()
    assert store.read_copies(copy.folder) == {0: store.CopyNote(gaps=((0, 4), (7, 8)))}


def test_a_run_whose_own_log_is_read_beside_is_watched_and_not_copied(tmp_path, copies):
    came = []
    with Here(copies, on_rows=came.append, beside=[tmp_path / "own"]) as recorder:
        own = Trainer(tmp_path / "own", recorder.endpoint).steps(range(20))
        far = Trainer(tmp_path / "far", recorder.endpoint, run_id="cd" * 16, name="far")
        far.steps(range(20))
        for trainer in (own, far):
            until_acknowledged(trainer.sender, 20)
            assert trainer.close()
    assert [path.name for path in copies.iterdir()] == ["far"]
    assert store.open_run(copies / "far").steps.num_rows == 20
    assert tmp_path / "own" / "run" in came
