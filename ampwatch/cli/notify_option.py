"""The option `--notify URL` of commands that watch: sends alerts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.terminal import say

if TYPE_CHECKING:
    from ampwatch.alerts import Delivery

NOTIFY_OPTION = typer.Option(
    None,
    "--notify",
    metavar="URL",
    envvar="AMPWATCH_NOTIFY",
    help="Send warnings and errors to URL; may be repeated.",
    show_default=False,
)

NOTIFY_HELP = """Alerts: --notify sends each warning and error once, with what to do, and again if
it gets worse. Alerts within a minute are sent as one message. To install: `pip install
'ampwatch[notify]'`. To keep passwords out of the command line, set AMPWATCH_NOTIFY; addresses are
never shown. `ampwatch alerts` keeps them for every recorder and dashboard.

\b
    slack://TOKEN_A/TOKEN_B/TOKEN_C/#channel
    discord://WEBHOOK_ID/WEBHOOK_TOKEN
    mailto://user:password@mail.example.com
    json://my.server/hook             (and a hundred more: https://appriseit.com/services/)
"""


@contextlib.contextmanager
def delivering(
    addresses: Sequence[str] | None, say: Callable[[str], None] = say
) -> Iterator[Delivery | None]:
    """Deliver alerts to the addresses of `--notify` within the block; None without addresses."""
    if not addresses:
        yield None
        return
    from ampwatch.alerts import Delivery, open_services

    services = open_services(addresses)
    with Delivery(services, on_note=say) as delivery:
        say(f"Alerts go to {', '.join(service.label for service in services)}.")
        yield delivery
