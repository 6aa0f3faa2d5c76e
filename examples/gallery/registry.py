"""All families, in the order in which they are listed."""

from __future__ import annotations

from examples.gallery.vocabulary import Case


def all_cases() -> tuple[Case, ...]:
    """Every case; loads torch."""
    from examples.gallery import benign, formats, low_precision, misuse, numbers, rates, scale
    from examples.gallery.blind import benign as blind_benign
    from examples.gallery.blind import misuse as blind_misuse
    from examples.gallery.blind import numbers as blind_numbers
    from examples.gallery.blind import rates as blind_rates
    from examples.gallery.held_out import benign as unseen_benign
    from examples.gallery.held_out import misuse as unseen_misuse
    from examples.gallery.held_out import numbers as unseen_numbers
    from examples.gallery.held_out import rates as unseen_rates

    open_families = (misuse, formats, low_precision, numbers, scale, rates, benign)
    blind = (blind_misuse, blind_numbers, blind_rates, blind_benign)
    held_out = (unseen_misuse, unseen_numbers, unseen_rates, unseen_benign)
    return tuple(
        case for module in (*open_families, *blind, *held_out) for case in module.FAMILY.cases
    )
