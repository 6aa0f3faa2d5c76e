"""The exit codes of all commands, one meaning each; docs/command_line.md shows this table."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command's exit code says."""

    DONE = 0
    FINDING = 1
    REFUSED = 2
    NOTHING_HELD = 3
    NOT_JUDGED = 4
    PARTLY_DONE = 5
    RESTART = 10
    PERSON = 11
    DEFECT = 70
    INTERRUPTED = 130
    TERMINATED = 143


# Per code: which commands exit with it, and what it says.
MEANINGS: dict[ExitCode, tuple[str, str]] = {
    ExitCode.DONE: ("all", "Done. `prove`: a change is proved. `plan`: continue."),
    ExitCode.FINDING: (
        "report --fail-on",
        "The report has a finding (a problem) of the severity that `--fail-on` names, or worse.",
    ),
    ExitCode.REFUSED: (
        "all",
        "Nothing was done: wrong use, or an input that cannot be read. stderr says what to do.",
    ),
    ExitCode.NOTHING_HELD: ("prove", "The reruns are finished, and no change is proved."),
    ExitCode.NOT_JUDGED: (
        "report --fail-on, fleet",
        "A run could not be judged: its log says too little, or cannot be read.",
    ),
    ExitCode.PARTLY_DONE: (
        "publish, alerts test",
        "Only a part of the work was done. stderr says which part is missing, and why.",
    ),
    ExitCode.RESTART: ("plan", "Restart with the changes of the plan."),
    ExitCode.PERSON: ("plan", "Stop: a person must look at the training."),
    ExitCode.DEFECT: (
        "all",
        "An error inside ampwatch; stderr has the traceback. Please report it.",
    ),
    ExitCode.INTERRUPTED: ("all", "Ended by Ctrl-C."),
    ExitCode.TERMINATED: ("all", "Ended by SIGTERM."),
}
