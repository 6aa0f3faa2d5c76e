"""Lines of an evaluation between those of training, whichever program prints them.

`{'eval_loss': 1.2, 'eval_wer': 0.3}`, `validation loss at iteration 1000 | lm loss value: 2.3`,
`valid | epoch 001 | loss 5.3 | ppl 40`, `val loss 0.7 acc 0.81`: metrics, not steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import Format
from ampwatch.importers.named_numbers import in_plain_words, metrics_of, numbers_in
from ampwatch.importers.statements import Metrics, Place, Statement

# After a time, a level, a place: a word that says what the line is about.
_BEGINS = re.compile(
    r"(?i)^(?:[\W\d_]|\b(?:info|debug|epoch|ep|step|iter|iteration|rank)\b){0,120}"
    r"(?:val|valid|validation|eval|evaluation|test|testing|dev)(?:[ :,_|>\])=-]|$)"
)
_EPOCH = re.compile(r"(?i)\bepoch\W{0,4}(\d{1,9})")
# A heading alone, such as `Eval epoch: 5`: its values are on the lines after it.
_HEADING = re.compile(r"(?i)[^a-z]*(?:val\w*|eval\w*|test\w*) +epoch\W{0,4}(\d{1,9})\W*")
_WORDS = ("val", "Val", "VAL", "eval", "Eval", "EVAL", "test", "Test", "TEST", "dev ", "Dev ")


def read(line: str) -> Iterator[Statement]:
    """Yield the metrics of an evaluation's line."""
    line = in_plain_words(line[:4096])
    begin = _BEGINS.match(line[:400])
    if begin is None:
        return
    numbers = numbers_in(line, of_other_lines=True)
    found = metrics_of(numbers, of_validation=True)
    if found:
        epoch = _EPOCH.search(begin[0])
        yield Metrics(found, None if epoch is None else int(epoch[1]))
    elif heading := _HEADING.fullmatch(line):
        yield Place(epoch=int(heading[1]), is_evaluation=True)


FORMAT = Format(source="evaluations", anchors=_WORDS, read=read, is_shared=True)
