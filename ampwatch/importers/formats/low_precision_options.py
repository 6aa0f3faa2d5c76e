"""Options of formats below 16 bits (fp8, fp4) that trainers print at their start, of any framework.

Megatron-LM prints `  fp8 ......... hybrid` (`_print_args`, megatron/training/arguments.py, commit
d98e8a6; the same in a public log of 2025); NeMo 1 prints its configuration as YAML, `  fp8: true`
(`OmegaConf.to_yaml(cfg)`, NVIDIA/NeMo commit 8cfedd7, conf/megatron_gpt_config.yaml).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ampwatch.importers.format import Format
from ampwatch.importers.statements import Setup, Statement

_NAMES = (
    r"fp8|fp8_(?:format|recipe|margin|interval|amax_history_len|amax_compute_algo|wgrad|param|"
    r"param_gather|output_proj|dot_product_attention|multi_head_attention|e4m3|hybrid)|"
    r"fp4|fp4_(?:recipe|param|param_gather)|first_last_layers_bf16|"
    r"num_layers_at_(?:start|end)_in_bf16"
)
_DOTTED = re.compile(rf"(?:^|\s)({_NAMES}) \.{{2,60}} (\S{{1,100}})\s*$")
_YAML = re.compile(rf"^\s*({_NAMES}): ([^\s#]{{1,100}})\s*(?:#.{{0,200}})?$")


def read(line: str) -> Iterator[Statement]:
    """Yield the low-precision option (fp8, fp4) that a line states."""
    told = _DOTTED.search(line) or _YAML.search(line)
    if told is not None:
        yield Setup(config={told[1]: told[2]})


FORMAT = Format(
    source="low-precision-options",
    anchors=(" fp8", "fp8:", " fp4", "fp4:", "_in_bf16", "first_last_layers_bf16"),
    read=read,
    is_shared=True,
)
