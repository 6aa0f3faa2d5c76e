"""The rules, in the order in which `explain` lists them; one not named here is not run."""

from __future__ import annotations

from ampwatch.diagnosis.registry import Rule
from ampwatch.diagnosis.rules import loop, numbers, rate, record, scale

RULES: tuple[Rule, ...] = (
    scale.startup_search,
    scale.growth_sawtooth,
    scale.scale_collapse,
    scale.scale_at_floor,
    scale.overflow_storm,
    scale.scale_reset,
    numbers.gradient_underflow,
    numbers.backward_overflow,
    numbers.forward_overflow,
    numbers.loss_not_finite,
    numbers.weights_not_finite,
    numbers.non_finite_input,
    rate.learning_rate_too_high,
    rate.warmup_too_steep,
    rate.learning_rate_could_rise,
    loop.clip_before_unscale,
    loop.update_missing,
    loop.step_bypasses_scaler,
    loop.fp16_without_scaler,
    loop.backward_under_autocast,
    loop.dtype_mismatch,
    loop.out_of_memory,
    record.incomplete_data,
    record.run_ended_uncleanly,
    record.telemetry_gap,
)
