"""Lines that some programs word in a way of their own, in plain words.

A row a program: its line, and the same as names and numbers. What is printed by words that say what
they mean needs no row here.
"""

from __future__ import annotations

import re

_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)"
_PHRASES: tuple[tuple[str, str, str], ...] = (
    # Deeplearning4j: its score is the loss.
    ("Score at iteration", rf"Score at iteration (\d+) is ({_NUMBER})", r"iteration \1 loss \2"),
    # What is measured before its step: `Cost after iteration 0: nan`, `Loss at step 10: 2.3`.
    (
        " ",
        (
            r"([A-Za-z][\w ]{0,30}) (?:after|at) (iteration|epoch|step):? (\d+)\s*[:=]? "
            rf"({_NUMBER})\s*$"
        ),
        r"\2 \3 \1 \4",
    ),
    # darknet: the loss, its mean, the learning rate.
    (
        " avg",
        rf"^ *(\d+): ({_NUMBER}), {_NUMBER} avg(?: loss)?, ({_NUMBER}) rate,.*",
        r"iteration \1 loss \2 lr \3",
    ),
    # `lr, 0.001` alone.
    (", ", rf"^\s*([A-Za-z][\w ]{{0,30}}), ({_NUMBER})\s*$", r"\1 \2"),
    # Flower: the loss after a round on all clients.
    ("fit progress", rf"fit progress: \((\d+), ({_NUMBER}), (.*)", r"step \1 loss \2 \3"),
    # VITS and its descendants: a list of losses that ends with the step and the learning rate.
    (
        "]",
        rf"INFO\s+\[(?:{_NUMBER}, )({_NUMBER}), (?:{_NUMBER}, ){{3,5}}(\d+), ({_NUMBER})\]$",
        r"step \2 gen_loss \1 lr \3",
    ),
)
# What a message's place in a program looks like, before the message.
_SOURCE = re.compile(
    r"^\s*(?:DEBUG|INFO|WARNING|ERROR):[\w.]+:|^\s*[IWEF]\d{4} [\d:.]+ +\d+ \S{1,80}:\d+\] |"
    r"\b[\w./-]{1,80}\.(?:py|cpp|cc|cu):\d+\b\]?"
)
_MARKS = re.compile(r"(?<!\d)\*\*|\*\*(?!\d)|`")  # of markdown
_WORDS = {
    "学习率": " lr", "損失": " loss", "损失": " loss", "步数": " step", "迭代次数": " iteration",
    "迭代": " iteration", "训练": " train ", "验证": " val ", "测试": " test ", "轮次": " epoch ",
    "回合": " epoch ", "準確率": " accuracy", "准确率": " accuracy", "梯度范数": " grad_norm",
    "эпизод": " episode ", "Эпизод": " episode ", "эпоха": " epoch ", "Эпоха": " epoch ",
    "шаг ": " step ", "Шаг ": " step ", "потери": " loss", "Потери": " loss", "награда": " reward",
    "Награда": " reward", "точность": " accuracy", "Точность": " accuracy", "épocas": " epoch ",
    "época": " epoch ", "Época": " epoch ", "pérdida": " loss", "Pérdida": " loss",
    "époque": " epoch ", "précision": " accuracy", "손실": " loss", "에폭": " epoch ",
    "에포크": " epoch ", "정확도": " accuracy", "보상": " reward", "损失值": " loss",
    "学習率": " lr", "エポック": " epoch ", "ステップ": " step ",
    "−": "-", "∞": "inf", "×10": "^10", "：": ":", "，": ", ", "【": "[",  # noqa: RUF001
    "】": "]", "（": "(", "）": ")", "＝": "=", "．": ".",  # noqa: RUF001
}  # fmt: skip
FOREIGN_WORDS = frozenset(word for word in _WORDS if len(word) > 1)
# Python 2 prints `('loss: ', 1.3)`: the comma stands between a name and its number.
_TUPLE = re.compile(r"(?<=[\w:= ])['\"],\s*(?=\[|-?\d|array)")
_GLUED = re.compile(r"(?i)\b(epoch|step|iter|iteration|batch)(\d+)\b")  # `epoch0; batch480`
_COMPILED = tuple((anchor, re.compile(wording), plain) for anchor, wording, plain in _PHRASES)


def in_plain_words(line: str) -> str:
    """A line with what is known to mean a step and a loss said in plain words."""
    line = _GLUED.sub(r"\1 \2", _MARKS.sub("", _SOURCE.sub(" ", line)))
    if line.lstrip().startswith(("('", '("')):
        line = _TUPLE.sub(" ", line)
    if not line.isascii():
        for word, english in _WORDS.items():
            line = line.replace(word, english)
    for anchor, wording, plain in _COMPILED:
        if anchor in line:
            line = wording.sub(plain, line)
    return line
