"""Formats below 16 bits (fp8, fp4): NVIDIA's inspector of their casts, trainers' options."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ampwatch.importers.format import NUMBER, Format, number
from ampwatch.importers.statements import LayerStats, Setup, Statement

# --- NVIDIA's inspector ---------------------------------------------------------------------------

# NVIDIA's inspector of low precision: a line for each statistic of each layer and iteration.
#
# The line is that of `FileLogger.log_scalar` of nvdlfw-inspect 0.2.2; its name is put together by
# `_Buffer.log` of Transformer Engine 2.20.0.dev0 (commit d0067d0): layer, tensor, statistic, each
# joined by `_`. The file is `nvdlfw_inspect_statistics_logs/nvdlfw_inspect_globalrank-N.log`.
#
# A statistic without a recipe is of the recipe in use; one that names another recipe says what that
# would do and is left out, unless only the recipe in use can have it (delayed scaling, NVFP4).

_LINE = re.compile(rf" - ([^\s]{{1,400}})\s+iteration=(\d{{1,12}})\s+value=({NUMBER})")
_NAME = re.compile(
    r"(?P<layer>.+)_(?P<tensor>activation|weight|gradient|output|wgrad|dgrad)_"
    r"(?:(?P<recipe>fp8_delayed_scaling|fp8_current_scaling|fp8_block_scaling|mxfp8|nvfp4)_)?"
    r"(?P<stat>underflows%|overflows%|scale_inv_min|scale_inv_max|mse|cur_amax|l2_norm|l1_norm|min|"
    r"max|mean|std|dynamic_range|max_blockwise_dynamic_range\w*)(?P<columnwise>_columnwise)?"
)
# Its tensors by our roles: a gradient is that of the layer's output.
_ROLES = {"activation": "input", "weight": "weight", "gradient": "grad"}
_MAXIMA = {
    "activation": "input_amax", "weight": "weight_amax", "gradient": "out_grad_amax",
    "output": "act_amax", "dgrad": "in_grad_amax", "wgrad": "grad_amax",
}  # fmt: skip
_NORMS = {"weight": "weight_norm", "wgrad": "grad_norm"}
# Both of its number formats are E4M3 in the forward pass; gradients are E4M3 or E5M2.
_FORMATS = {"input": "float8_e4m3fn", "weight": "float8_e4m3fn", "grad": "float8"}
_RECIPES = {
    None: "", "fp8_delayed_scaling": "/tensorwise/delayed", "nvfp4": "nvfp4/block16",
}  # fmt: skip
_SHARES = {"underflows%": "flushed", "overflows%": "saturated"}
_SCALE = "scale_inv_max"  # of a whole tensor; that of a part is not used


def read_inspector(line: str) -> Iterator[Statement]:
    """Yield what a line of the inspector states."""
    match = _LINE.search(line)
    name = _NAME.fullmatch(match[1]) if match else None
    if match is None or name is None:
        return
    yield Setup()  # the line is the inspector's, whatever figure it holds
    if name["columnwise"]:
        return
    value, layer, step = number(match[3]), name["layer"], int(match[2])
    if name["stat"] in ("cur_amax", "l2_norm"):
        columns = _MAXIMA if name["stat"] == "cur_amax" else _NORMS
        column = columns.get(name["tensor"])
        # Four digits after the point are printed: a 0 may be any small number.
        yield LayerStats(layer, step, {column: value} if column and value != 0.0 else {})
    elif name["tensor"] in _ROLES and name["recipe"] in _RECIPES and name["stat"] in _OF_CASTS:
        yield _cast(layer, step, name, value)


def _cast(layer: str, step: int, name: re.Match[str], value: float) -> LayerStats:
    """What the inspector tells of a cast: a share of the values, or the inverse of its scale."""
    role, stat, recipe = _ROLES[name["tensor"]], name["stat"], name["recipe"]
    if stat == "overflows%":
        recipe = "fp8_delayed_scaling"  # the only one that has this statistic
    row = _RECIPES[recipe]
    formats = {f"{role}_format": row if recipe == "nvfp4" else _FORMATS[role] + row}
    if stat in _SHARES:
        shares = {f"{role}_{_SHARES[stat]}_share": value / 100}
        return LayerStats(layer, step, shares, formats=formats)
    scales = {role: 1 / value} if value > 0 and math.isfinite(value) else {}
    return LayerStats(layer, step, scales=scales, formats=formats)


_OF_CASTS = (*_SHARES, _SCALE)

_NOTE = (
    "The inspector counts shares of all values, zeros included: of the non-zero values they may be "
    "larger."
)
NVIDIA_INSPECTOR = Format(
    source="nvidia-inspector", anchors=(" iteration=",), read=read_inspector, notes=(_NOTE,)
)


# --- options --------------------------------------------------------------------------------------

# Options of formats below 16 bits (fp8, fp4) that trainers print at their start, of any framework.
#
# Megatron-LM prints `  fp8 ......... hybrid` (`_print_args`, megatron/training/arguments.py, commit
# d98e8a6; the same in a public log of 2025); NeMo 1 prints its configuration as YAML, `  fp8: true`
# (`OmegaConf.to_yaml(cfg)`, NVIDIA/NeMo commit 8cfedd7, conf/megatron_gpt_config.yaml).

_OPTIONS = (
    r"fp8|fp8_(?:format|recipe|margin|interval|amax_history_len|amax_compute_algo|wgrad|param|"
    r"param_gather|output_proj|dot_product_attention|multi_head_attention|e4m3|hybrid)|"
    r"fp4|fp4_(?:recipe|param|param_gather)|first_last_layers_bf16|"
    r"num_layers_at_(?:start|end)_in_bf16"
)
_DOTTED = re.compile(rf"(?:^|\s)({_OPTIONS}) \.{{2,60}} (\S{{1,100}})\s*$")
_YAML = re.compile(rf"^\s*({_OPTIONS}): ([^\s#]{{1,100}})\s*(?:#.{{0,200}})?$")


def read_options(line: str) -> Iterator[Statement]:
    """Yield the low-precision option (fp8, fp4) that a line states."""
    match = _DOTTED.search(line) or _YAML.search(line)
    if match is not None:
        yield Setup(config={match[1]: match[2]})


LOW_PRECISION_OPTIONS = Format(
    source="low-precision-options",
    anchors=(" fp8", "fp8:", " fp4", "fp4:", "_in_bf16", "first_last_layers_bf16"),
    read=read_options,
    is_shared=True,
)
