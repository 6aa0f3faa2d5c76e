"""`--notify`: real processes, a real training, a real web server that is told."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from subprocess import PIPE

import children
import impatient_cli
import pytest
from alert_parts import COLLAPSING, wait_for, web_hook
from written_runs import write_run

import ampwatch
from ampwatch import cli
from ampwatch.alerts import add_setting, new_setting

pytest.importorskip("apprise", reason="the extra `notify` is not installed")

PATIENCE_S = 120.0


@pytest.fixture
def environment(tmp_path):
    return {
        **os.environ,
        "PYTHONPATH": str(Path(ampwatch.__file__).parents[1]),
        "AMPWATCH_DIR": str(tmp_path / "runs"),
        "AMPWATCH_ENDPOINT": f"ipc://{tmp_path}/feed",
        "OMP_NUM_THREADS": "1",
    }


def start(arguments, environment):
    return children.start(*arguments, env=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE)


def train(environment):
    return children.start("-c", COLLAPSING, env=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE)


def finish(child):
    out, err = child.communicate(timeout=PATIENCE_S)
    return child.returncode, out, err


def test_a_recorder_tells_of_a_real_training_and_never_shows_the_address(tmp_path, environment):
    words = ["-m", "ampwatch", "record", "--bind", environment["AMPWATCH_ENDPOINT"],
             "-o", tmp_path / "copies"]  # fmt: skip
    with web_hook() as hook, web_hook() as other:
        add_setting(new_setting(other.address, name="kept"))
        recorder = start([*words, "--notify", hook.address], environment)
        said = {recorder.stderr.readline(), recorder.stderr.readline()}
        assert {"Alerts go to json://….\n", "Alerts go to kept (json://…).\n"} == said
        trainer = train(environment)
        wait_for(lambda: hook.taken and other.taken)
        trainer.communicate("\n", timeout=PATIENCE_S)
        recorder.send_signal(signal.SIGINT)
        code, out, err = finish(recorder)
    assert code == 0
    [told] = hook.taken
    assert [kept["title"] for kept in other.taken] == [told["title"]]
    assert "AMP209" in told["message"]
    assert "collapse is failing" in told["title"]
    assert f"ampwatch report {tmp_path / 'copies' / 'collapse'}" in told["message"]
    for secret in ("s3cret", "t0ken"):
        assert secret not in out + err


def test_watching_tells_of_findings_and_of_a_trainer_that_was_killed(tmp_path, environment):
    environment = {**environment, "AMPWATCH_ENDPOINT": "off"}
    trainer = train(environment)
    assert trainer.stdout.readline() == "trained\n"
    with web_hook() as hook:
        environment["AMPWATCH_NOTIFY"] = hook.address
        watching = start([impatient_cli.PROGRAM, "watch", "--every", "0.1"], environment)
        wait_for(lambda: hook.taken)
        trainer.kill()
        finish(trainer)
        code, _, err = finish(watching)
    assert code == 0
    assert ["AMP209" in told["message"] for told in hook.taken] == [True, False]
    assert "collapse ended uncleanly after 60 steps" in hook.taken[1]["title"]
    assert "Watching collapse" in err
    assert "s3cret" not in err


def test_a_run_that_is_well_sends_nothing(tmp_path, capsys):
    with web_hook() as hook:
        assert cli.run(["watch", str(write_run(tmp_path)), "--notify", hook.address]) == 0
    assert hook.asked == 0


def test_a_service_that_is_down_does_not_stop_the_watching(tmp_path, capsys):
    path = write_run(tmp_path, skipped=30)
    assert cli.run(["watch", str(path), "--notify", "json://me:s3cret@127.0.0.1:1/t0ken"]) == 0
    captured = capsys.readouterr()
    assert "AMP103" in captured.out
    assert "did not accept an alert" in captured.err
    assert "1 alert could not be sent to json://…" in captured.err
    assert "s3cret" not in captured.err


def test_an_address_that_is_none_is_refused_without_showing_it(tmp_path, capsys):
    assert cli.run(["watch", str(write_run(tmp_path)), "--notify", "s3cret"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "s3cret" not in error
