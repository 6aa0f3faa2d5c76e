"""All families, in the order in which they are listed."""

from __future__ import annotations

from examples.gallery.vocabulary import Case


def all_cases() -> tuple[Case, ...]:
    """Every case; loads torch."""
    from examples.gallery import benign, formats, misuse, numbers, rates, scale
    from examples.gallery.held_out import benign as unseen_benign
    from examples.gallery.held_out import misuse as unseen_misuse
    from examples.gallery.held_out import numbers as unseen_numbers
    from examples.gallery.held_out import rates as unseen_rates

    open_families = (misuse, formats, numbers, scale, rates, benign)
    held_out = (unseen_misuse, unseen_numbers, unseen_rates, unseen_benign)
    return tuple(case for module in (*open_families, *held_out) for case in module.FAMILY.cases)
