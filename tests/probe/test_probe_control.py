"""What a page asks of a training is done between two steps, or refused with a reason."""

import json
import signal
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.feed import Instruction, InstructionArrived, Key

SLOWER = Instruction(Key.RATE, 0.25)


class Trained:
    """A real loop, watched, that a page may act on."""

    def __init__(self, folder, **options):
        torch.manual_seed(0)
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)
        self.schedule = torch.optim.lr_scheduler.ConstantLR(self.optimizer, 1.0, 1)
        options = {"control": True, **options}
        self.watch = ampwatch.attach(
            None, self.model, optimizer=self.optimizer, log_dir=folder, run="run",
            endpoint="off", **options,
        )  # fmt: skip
        self.number = 0

    def steps(self, count=1):
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(torch.ones(2, 4)).sum().backward()
            self.optimizer.step()
            self.schedule.step()

    @property
    def rate(self):
        return self.optimizer.param_groups[0]["lr"]

    def ask(self, instruction, age_s=0.5, is_authentic=True, again=False):
        self.number += not again
        arrived = InstructionArrived(instruction, self.number, age_s, is_authentic)
        self.watch.loop.control.take(arrived)

    def answers(self, folder):
        self.watch.close()
        run = ampwatch.open_run(folder / "run")
        rows = run.events.to_pylist()
        told = [json.loads(row["detail"]) for row in rows if row["kind"] == "control"]
        return [one for one in told if "offers" not in one], [o for o in told if "offers" in o], run


def test_a_rate_is_changed_after_the_step_in_progress_and_the_rows_say_so(tmp_path):
    trained = Trained(tmp_path)
    trained.steps(3)
    trained.ask(SLOWER)
    assert trained.rate == 0.2  # not yet
    trained.steps(4)
    answers, offers, run = trained.answers(tmp_path)
    assert trained.rate == pytest.approx(0.05)
    assert [(a["asked"], a["outcome"], a["from"], a["to"]) for a in answers] == [
        ("learning-rate", "done", [0.2], [0.05])
    ]
    assert "from 0.2 to 0.05" in answers[0]["told"]
    assert offers == [{"offers": ["learning-rate", "stop"]}]
    assert run.steps.column("lr").to_pylist() == [0.2] * 4 + [0.05] * 3
    assert run.steps.column("lr_base").to_pylist() == [0.2] * 4 + [pytest.approx(0.05)] * 3


def test_nothing_can_be_asked_of_a_training_that_does_not_allow_it(tmp_path):
    trained = Trained(tmp_path, control=False)
    trained.steps(2)
    assert trained.watch.loop.control is None
    assert trained.answers(tmp_path)[:2] == ([], [])


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"age_s": 16.0}, "it came late (after 16 s)"),
        ({"age_s": -30.0}, "it came late"),
        ({"is_authentic": False}, "not encrypted"),
        ({"again": True}, "it came a second time"),
    ],
)
def test_a_late_forged_or_repeated_instruction_is_refused_and_nothing_changes(tmp_path, asked, why):
    trained = Trained(tmp_path)
    if asked.get("again"):
        trained.ask(Instruction(Key.RATE, 1.0))
    trained.ask(SLOWER, **asked)
    trained.steps(3)
    answers, _, _ = trained.answers(tmp_path)
    assert trained.rate == 0.2
    refused = [one for one in answers if one["outcome"] == "refused"]
    assert len(refused) == 1
    assert why in refused[0]["told"]


def test_a_program_that_sets_its_rate_itself_is_told(tmp_path):
    trained = Trained(tmp_path)
    trained.steps(2)
    trained.ask(SLOWER)
    for _ in range(3):
        trained.optimizer.param_groups[0]["lr"] = 0.2
        trained.steps()
    answers, _, _ = trained.answers(tmp_path)
    assert [one["outcome"] for one in answers] == ["done", "undone"]
    assert "change it in the script" in answers[1]["told"]


def test_a_checkpoint_is_written_by_the_trainings_own_function(tmp_path):
    trained, saved = Trained(tmp_path), []
    trained.ask(Instruction(Key.SAVE))
    trained.watch.on_save(lambda: saved.append(trained.rate))
    trained.ask(Instruction(Key.SAVE))
    trained.steps(2)
    answers, offers, _ = trained.answers(tmp_path)
    assert saved == [0.2]
    assert [one["outcome"] for one in answers] == ["refused", "done"]
    assert "watch.on_save" in answers[0]["told"]
    assert offers[-1]["offers"] == ["learning-rate", "save", "stop"]


def test_a_function_that_fails_is_told_and_training_goes_on(tmp_path):
    trained = Trained(tmp_path)

    def save():
        raise OSError("the disk is full")

    trained.watch.on_save(save)
    trained.ask(Instruction(Key.SAVE))
    trained.steps(3)
    answers, _, run = trained.answers(tmp_path)
    assert answers[0]["outcome"] == "failed"
    assert "the disk is full" in answers[0]["told"]
    assert run.steps.num_rows == 3


@pytest.mark.slow_starts
def test_a_stop_is_as_ctrl_c_after_a_whole_step(tmp_path):
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[1])
        from test_probe_control import Trained
        from ampwatch.feed import Instruction, Key

        trained = Trained(Path(sys.argv[2]))
        trained.steps(5)
        trained.ask(Instruction(Key.STOP))
        try:
            trained.steps(1000)
        except KeyboardInterrupt:
            print("stopped")
            raise
    """)
    here = str(__file__).rpartition("/")[0]
    done = subprocess.run(
        [sys.executable, "-c", program, here, str(tmp_path)], capture_output=True, text=True
    )
    assert done.stdout == "stopped\n"
    assert done.returncode == -signal.SIGINT
    run = ampwatch.open_run(tmp_path / "run")
    assert run.steps.num_rows == 6
    assert run.clean_end


def test_a_stop_goes_to_the_trainings_own_function(tmp_path):
    trained, stopped = Trained(tmp_path), []
    trained.watch.on_stop(lambda: stopped.append(True))
    trained.ask(Instruction(Key.STOP))
    trained.steps(3)
    assert stopped == [True]
    trained.watch.close()


def test_ranks_that_never_met_refuse_and_say_why(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    trained = Trained(tmp_path)
    trained.ask(SLOWER)
    trained.steps(2)
    answers, _, _ = trained.answers(tmp_path)
    assert trained.rate == 0.2
    assert "no process group" in answers[0]["told"]


def test_permission_alone_changes_no_bit(tmp_path):
    weights = []
    for control in (False, True):
        trained = Trained(tmp_path / str(control), control=control)
        trained.steps(20)
        trained.watch.close()
        weights.append(trained.model.weight.detach().clone())
    assert torch.equal(*weights)
