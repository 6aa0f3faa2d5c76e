"""The tables and their columns: how each is stored and sent, what it means, how it is shown.

Absent is null, never 0. Units live in names. `FORMAT` numbers this set of schemas; a reader refuses
a higher one, and reads a lower one: a format only adds columns, at the end of a table (`ADDED`),
and they are null in rows from before. Stored forms that differ from the public ones (a layer's
number instead of its name, a data type's number instead of its name) are undone by `store.Run`.
docs/columns.md is made of `COLUMNS`: `python -m ampwatch.rows > docs/columns.md`.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

FORMAT = 5


class Table(str, enum.Enum):
    """The tables of a run; the value is the stem of the file's name."""

    STEPS = "steps"
    LAYERS = "layers"
    LAYER_INFO = "layer_info"
    DEVICES = "devices"
    EVENTS = "events"
    EXTRAS = "extras"

    @property
    def number(self) -> int:
        """The number that stands for this table in an index record and in a frame."""
        return TABLE_NUMBERS[self]


TABLES = tuple(Table)
TABLE_NUMBERS = {table: number for number, table in enumerate(TABLES)}


class EventKind(str, enum.Enum):
    """The kinds of rows in the table of events."""

    STARTED = "started"
    ENDED = "ended"
    OPTIMIZER = "optimizer"
    OPTIMIZER_REPLACED = "optimizer-replaced"
    SCALER_REPLACED = "scaler-replaced"
    STATE_LOADED = "state-loaded"
    STATE_SAVED = "state-saved"
    LR_CHANGED = "lr-changed"
    BATCH_SIZE_CHANGED = "batch-size-changed"
    SCALE_SET = "scale-set"
    OVERFLOW = "overflow"
    MISUSE = "misuse"
    EXCEPTION = "exception"
    GAP = "gap"
    CONTROL = "control"
    GUARD = "guard"


class Mark(str, enum.Enum):
    """How a foreign log's column differs from a plain reading at each step."""

    AVERAGED = "averaged"  # over the steps since the line before, or over all
    ROUNDED = "rounded"  # printed with few digits; a printed 0 may not be zero and is left out
    STALE = "stale"  # repeated from an earlier step; left out
    IMPLIED = "implied"  # derived from a counter or from later lines
    ASSUMED = "assumed"  # a setting: the framework's default, which the log does not state
    PLACED = "placed"  # unnumbered steps keep the log's order
    EPOCHS = "epochs"  # nothing finer is counted: each step is an epoch


# `lr-changed` is a group's rate that became this many times higher at once, or more: a schedule's
# ticks stand in the steps.
LR_LEAP = 2.0

# Stored as its position; append only.
DTYPES = (
    "float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2",
    "int8", "uint8", "int16", "int32", "int64", "bool", "complex64", "complex128", "other",
)  # fmt: skip
DTYPE_NUMBERS = {name: number for number, name in enumerate(DTYPES)}

# `exponents`: how many sampled values have floor(log2|value|) == EXPONENT_LOWEST + i - 1 in bin i;
# bin 0 counts exact zeros, the last bin inf and nan; the ends hold what lies beyond them.
EXPONENT_LOWEST = -40
EXPONENT_BINS = 64

# `input_what_if` and the like: what these would flush to zero, scaled from the tensor itself.
WHAT_IF_FORMATS = (
    "float8_e4m3fn/tensorwise", "float8_e5m2/tensorwise", "mxfp8_e4m3/block32", "nvfp4/block16",
)  # fmt: skip

_f32, _f64, _i64 = pa.float32(), pa.float64(), pa.int64()
_i32, _i16, _i8, _bool, _text = pa.int32(), pa.int16(), pa.int8(), pa.bool_(), pa.string()


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its stored type, its meaning, and how its values are shown.

    A value in `%` is stored as a share, 0 to 1.
    """

    name: str
    kind: pa.DataType
    meaning: str
    label: str = ""  # on charts and in tables
    unit: str = ""
    format: str = ".4g"

    @property
    def axis(self) -> str:
        """The column's label with its unit, for an axis: `step time, ms`."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    def text(self, value: float | None) -> str:
        """A value of the column as text without its unit; empty for None."""
        if value is None:
            return ""
        return format(100 * value if self.unit == "%" else value, self.format)


# `rank` is not stored: the folder is the rank, and the reader adds the column.
COLUMNS: Mapping[Table, tuple[Column, ...]] = {
    Table.STEPS: (
        Column("step", _i64, "number of the step", "step", format=",d"),
        Column("time_ns", _i64, "when the step ended, since 1970", "time", "ns", "d"),
        Column("scale", _f64, "loss scale that this step's gradients had", "loss scale"),
        Column("growth_tracker", _i32, "the scaler's count of good steps since its last change"),
        Column("scale_after", _f64, "loss scale after the update", "loss scale afterwards"),
        Column("update_seen", _bool, "whether `scaler.update()` ended the step"),
        Column("found_inf", _bool, "whether the scaler saw inf or nan"),
        Column("skipped", _bool, "whether the optimizer's step was skipped", "skipped steps"),
        Column("stepped", _bool, "whether the optimizer's step ran"),
        Column("loss", _f64, "unscaled loss, summed over micro-batches", "loss"),
        Column("lr", _f64, "learning rate of the first group", "learning rate"),
        Column("lr_base", _f64, "base learning rate of the first group", "base learning rate"),
        Column("lrs", pa.list_(_f64), "learning rates of all groups"),
        Column("lr_bases", pa.list_(_f64), "base learning rates of all groups"),
        Column("grad_norm", _f64, "gradient norm, unscaled, before clipping", "gradient norm"),
        Column(
            "grad_norm_applied", _f64, "gradient norm as the optimizer saw it", "after clipping"
        ),
        Column("param_norm", _f32, "norm of the trainable matrix weights", "weight norm"),
        Column("update_norm", _f32, "norm of the optimizer's update of them", "update norm"),
        Column("update_norm_rel_error", _f32, "relative error of `update_norm`"),
        Column("max_update_ratio", _f32, "largest update ratio of a layer", "largest update ratio"),
        Column("max_update_layer", _i32, "the layer that had it"),  # stored by number
        Column("update_alignment", _f32, "cosine of the update to the one before", "alignment"),
        Column("input_amax", _f32, "largest absolute value that entered the model", "input max"),
        Column("input_finite", _bool, "whether all that entered the model was finite"),
        Column("micro_batches", _i32, "calls of `scale(loss)` in the step", "micro-batches"),
        Column("step_time_ms", _f32, "time since the step before", "step time", "ms"),
        Column("autocast_dtype", _i8, "data type of autocast", "autocast"),  # place in DTYPES
        Column("optimizer", _i16, "number of the optimizer, by first use; its successor keeps it"),
        Column("unmoved_share", _f32, "weights that the step left unchanged", "unmoved", "%"),
        Column("asked_share", _f32, "weights that unbiased rounding would change", "asked", "%"),
        Column("update_kept_share", _f32, "part of the update left by rounding", "kept", "%"),
    ),
    Table.LAYERS: (
        Column("step", _i64, "number of the step", "step", format=",d"),
        Column("layer", _i32, "path in `named_modules()`", "layer"),  # a number, see LAYER_INFO
        Column("grad_norm", _f32, "norm of the parameters' gradients", "gradient norm"),
        Column("grad_amax", _f32, "largest absolute gradient", "gradient maximum"),
        Column("grad_finite", _bool, "whether the gradients are finite"),
        Column("grad_finite_local", _bool, "the same before ranks are reduced"),
        Column("input_amax", _f32, "largest absolute input", "input maximum"),
        Column("input_finite", _bool, "whether the input is finite"),
        Column("act_amax", _f32, "largest absolute output", "activation maximum"),
        Column("act_finite", _bool, "whether the output is finite"),
        Column("out_grad_amax", _f32, "largest absolute gradient at the output"),
        Column("out_grad_finite", _bool, "whether the gradient at the output is finite"),
        Column("in_grad_amax", _f32, "largest absolute gradient at the input"),
        Column("in_grad_finite", _bool, "whether the gradient at the input is finite"),
        Column("weight_finite", _bool, "whether the weights are finite"),
        Column("weight_norm", _f32, "norm of the weights", "weight norm"),
        Column("update_ratio", _f32, "size of an update over size of the weights", "update ratio"),
        Column(
            "underflow_share", _f32, "non-zero gradients that fp16 loses or keeps as subnormals",
            "underflow", "%", ".3g",
        ),
        Column("exponents", pa.list_(_i32), "histogram of the output gradient's exponents"),
        Column(
            "log2_headroom", _f32, "from the largest activation to the format's maximum",
            "headroom", "octaves", ".1f",
        ),
        Column("scale_low", _f32, "smallest loss scale that keeps the layer's gradients"),
        Column("scale_high", _f32, "largest loss scale at which they do not overflow"),
        Column(
            "moment_ratio", _f32, "gradient over the root of Adam's second moment",
            "gradient over moment",
        ),
        Column(
            "input_saturated_share", _f32, "non-zero inputs that the narrow format cuts off",
            "input cut off", "%", ".3g",
        ),
        Column(
            "input_flushed_share", _f32, "non-zero inputs that it flushes to zero",
            "input flushed", "%", ".3g",
        ),
        Column(
            "weight_saturated_share", _f32, "non-zero weights that it cuts off",
            "weight cut off", "%", ".3g",
        ),
        Column(
            "weight_flushed_share", _f32, "non-zero weights that it flushes to zero",
            "weight flushed", "%", ".3g",
        ),
        Column(
            "grad_saturated_share", _f32, "non-zero output gradients that it cuts off",
            "gradient cut off", "%", ".3g",
        ),
        Column(
            "grad_flushed_share", _f32, "non-zero output gradients that it flushes to zero",
            "gradient flushed", "%", ".3g",
        ),
        Column(
            "amax_staleness", _f32,
            "newest maximum times the scale in use, over the format's largest number",
            "maximum over room",
        ),
        Column(
            "input_spread", _f32, "from the mean to the largest input of a block of 32, mean",
            "spread of inputs", "octaves", ".1f",
        ),
        Column(
            "weight_spread", _f32, "the same of the weight", "spread of weights", "octaves", ".1f"
        ),
        Column(
            "grad_spread", _f32, "the same of the output gradient",
            "spread of gradients", "octaves", ".1f",
        ),
        Column(
            "input_what_if", pa.list_(_f32),
            "share of the input that each of `WHAT_IF_FORMATS` would flush to zero",
        ),
        Column("weight_what_if", pa.list_(_f32), "the same of the weight"),
        Column("grad_what_if", pa.list_(_f32), "the same of the output gradient"),
        Column(
            "input_scale", _f32, "delayed scale that the input was cast with", "scale of the input"
        ),
        Column("weight_scale", _f32, "the same of the weight", "scale of the weight"),
        Column("grad_scale", _f32, "the same of the output gradient", "scale of the gradient"),
    ),
    # What seldom changes: a row when a layer is first seen and on each change, valid from `step`.
    Table.LAYER_INFO: (
        Column("step", _i64, "first step of which the row holds", "step", format=",d"),
        Column("layer", _i32, "the layer's number"),
        Column("name", _text, "path in `named_modules()`", "layer"),
        Column("order", _i32, "place in the forward pass"),
        Column("kind", _text, "class of the module", "kind"),
        Column("trainable", _bool, "whether a parameter needs gradients"),
        Column("param_group", _i32, "the optimizer's group of its parameters"),
        Column("weight_shape", pa.list_(_i64), "shape of the weight"),
        Column("rows", _i64, "rows of the matrix product"),
        Column("flops", _f64, "floating-point operations of a forward pass"),
        Column("observed", _text, "why a layer is not seen inside, if it is not"),
        Column("input_dtype", _i8, "data type of the input", "input"),
        Column("param_dtype", _i8, "data type of the parameters", "weights"),
        Column("output_dtype", _i8, "data type of the output", "output"),
        Column("param_grad_dtype", _i8, "data type of the parameters' gradients"),
        Column("out_grad_dtype", _i8, "data type of the gradient at the output", "gradient"),
        Column("autocast", _bool, "whether autocast was on"),
        Column("input_format", _text, "format below 16 bits that the input is cast to", "input as"),
        Column(
            "weight_format", _text, "format below 16 bits that the weight is cast to", "weight as"
        ),
        Column(
            "grad_format", _text, "format below 16 bits that the output's gradient is cast to",
            "gradient as",
        ),
        # Of a router, in each sampled step: in the table of layers they would cost every other run.
        Column("expert_tokens", pa.list_(_i64), "tokens that a router sent to each expert"),
        Column(
            "expert_most", _f32, "tokens of its busiest expert over the mean", "busiest expert"
        ),
        Column(
            "expert_entropy", _f32, "entropy of the shares of its experts, 1 if all are equal",
            "balance of experts",
        ),
        Column("experts_idle", _f32, "experts without a token", "experts without tokens"),
    ),
    Table.DEVICES: (
        Column("time_ns", _i64, "when it was sampled, since 1970", "time", "ns", "d"),
        Column("device", _text, "such as `cuda:0`", "device"),
        Column("name", _text, "name of the card"),
        Column("capability", _text, "compute capability"),
        Column("allocated_bytes", _i64, "memory that tensors hold", "allocated", "bytes", "d"),
        Column("reserved_bytes", _i64, "memory that torch holds", "reserved", "bytes", "d"),
        Column("peak_bytes", _i64, "largest memory that tensors held", "peak", "bytes", "d"),
        Column(
            "used_bytes", _i64, "memory in use on the card, by all processes",
            "used on the card, by all", "bytes", "d",
        ),
        Column("total_bytes", _i64, "memory of the card", "size of the card", "bytes", "d"),
        Column("utilisation", _f32, "share of time in which the card worked", "utilisation", "%"),
        Column("power_w", _f32, "power draw", "power", "W"),
        Column("temperature_c", _f32, "temperature", "temperature", "°C"),
        Column(
            "host_rss_bytes", _i64, "host memory of the process", "the process in host memory",
            "bytes", "d",
        ),
    ),
    Table.EVENTS: (
        Column("step", _i64, "number of the step", "step", format=",d"),
        Column("time_ns", _i64, "when it happened, since 1970", "time", "ns", "d"),
        Column("kind", _text, "one of the kinds below"),
        Column("detail", _text, "what belongs to the kind, as JSON"),
    ),
    # Scalars that have no column, long form: a new name needs no new schema.
    Table.EXTRAS: (
        Column("step", _i64, "number of the step", "step", format=",d"),
        Column("name", _text, "the name given to `watch.log`, or the log's own"),
        Column("value", _f64, "the value"),
    ),
}  # fmt: skip


def column(table: Table, name: str) -> Column:
    """The column of that name in a table of runs; KeyError if the table has none."""
    return _BY_NAME[table, name]


_BY_NAME = {(table, one.name): one for table, columns in COLUMNS.items() for one in columns}


def _schema(table: Table) -> pa.Schema:
    metadata = {"ampwatch.format": str(FORMAT), "ampwatch.table": table.value}
    return pa.schema([pa.field(one.name, one.kind) for one in COLUMNS[table]], metadata=metadata)


SCHEMAS: dict[Table, pa.Schema] = {table: _schema(table) for table in TABLES}

# The columns that each format after the first has added.
ADDED: Mapping[int, Mapping[Table, tuple[str, ...]]] = {
    2: {
        Table.STEPS: ("unmoved_share", "asked_share", "update_kept_share"),
        Table.LAYERS: ("moment_ratio",),
    },
    3: {
        Table.LAYERS: (
            "input_saturated_share",
            "input_flushed_share",
            "weight_saturated_share",
            "weight_flushed_share",
            "grad_saturated_share",
            "grad_flushed_share",
            "amax_staleness",
            "input_spread",
            "weight_spread",
            "grad_spread",
            "input_what_if",
            "weight_what_if",
            "grad_what_if",
        ),
        Table.LAYER_INFO: ("input_format", "weight_format", "grad_format"),
    },
    4: {Table.LAYERS: ("input_scale", "weight_scale", "grad_scale")},
    5: {Table.LAYER_INFO: ("expert_tokens", "expert_most", "expert_entropy", "experts_idle")},
}


@functools.cache
def schema_of(table: Table, number: int = FORMAT) -> pa.Schema:
    """A table's Arrow schema in a format; without metadata if it is an earlier one."""
    if number >= FORMAT:
        return SCHEMAS[table]
    later = {name for at, added in ADDED.items() if at > number for name in added.get(table, ())}
    return pa.schema([field for field in SCHEMAS[table] if field.name not in later])


@functools.cache
def schemas_of(table: Table) -> tuple[pa.Schema, ...]:
    """Every Arrow schema that the table has had, the present one first."""
    known = [schema_of(table, number) for number in range(FORMAT, 0, -1)]
    return tuple(s for at, s in enumerate(known) if at == 0 or len(s) != len(known[at - 1]))


def columns_page() -> str:
    """The page docs/columns.md, which lists the columns of all tables."""
    parts = [
        _PAGE_HEAD,
        *(_page_section(table) for table in TABLES if table is not Table.LAYER_INFO),
    ]
    kinds = ", ".join(f"`{kind.value}`" for kind in EventKind)
    return "\n".join([*parts, f"Kinds of events: {kinds}.", ""])


_PAGE_HEAD = """\
# Columns

The tables of a run, as `ampwatch.open_run(path)` gives them: `run.steps`, `run.layers`,
`run.devices`, `run.events`. Each also has a column `rank`. A value that was not measured is null.
Values in % are stored as shares, 0 to 1.

Made from `ampwatch/rows.py` by `python -m ampwatch.rows > docs/columns.md`; a test keeps it equal.
"""
_ABOUT = {
    Table.STEPS: "One row a step and optimizer. Scalars that `watch.log` was given are added as "
    "columns by the reader.",
    Table.LAYERS: "One row a layer and sampled step: the first ten steps, every `layer_every`-th, "
    "and twenty after a skipped step.",
    Table.DEVICES: "About one row a second and device.",
    Table.EVENTS: "One row an event.",
    Table.EXTRAS: "Scalars that `watch.log` was given, or that a log measured beside its steps.",
}
_STORED_AS_NUMBER = frozenset({"layer", "max_update_layer"})


def _page_section(table: Table) -> str:
    shown = COLUMNS[table]
    if table is Table.LAYERS:  # the reader joins what is stored once a layer
        known = {one.name for one in shown} | {"name"}
        shown = (*shown, *(one for one in COLUMNS[Table.LAYER_INFO] if one.name not in known))
    rows = [f"| `{one.name}` | {_kind_text(one)} | {one.unit} | {one.meaning} |" for one in shown]
    head = ["| column | type | unit | meaning |", "|---|---|---|---|"]
    return "\n".join([f"## {table.value}", "", _ABOUT[table], "", *head, *rows, ""])


def _kind_text(one: Column) -> str:
    """A column's type as docs/columns.md names it: as the reader gives it, not as stored."""
    is_name = one.name in _STORED_AS_NUMBER or one.name.endswith("_dtype")
    return "string" if is_name else str(one.kind).replace("<item: ", "<")


if __name__ == "__main__":
    print(columns_page(), end="")
