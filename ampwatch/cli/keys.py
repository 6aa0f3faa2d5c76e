"""`ampwatch keys`: prints this user's public key, and the keys that may connect."""

from __future__ import annotations

import typer

from ampwatch.cli.terminal import answer

HELP = """Print your public key, and the keys that may send to you.

  ampwatch keys                              on the trainer: print its key
  ampwatch keys --allow KEY --comment node7  on the recorder: let it connect
  AMPWATCH_RECORDER_KEY=KEY python train.py  on the trainer: the recorder's key

On one machine, or with a shared home folder, there is nothing to do: the key
pair is made on first use, and both sides find it.
"""


def command(
    allow: str = typer.Option(
        None, metavar="KEY", help="Let trainers with this key connect.", show_default=False
    ),
    comment: str = typer.Option(
        "", metavar="TEXT", help="A note about the key, such as its owner.", show_default=False
    ),
    forget: str = typer.Option(
        None, metavar="KEY", help="Remove a key from the list.", show_default=False
    ),
) -> None:
    """Print or change the keys that may connect."""
    from ampwatch import feed

    if allow:
        feed.allow_key(allow, comment)
    if forget and not feed.forget_key(forget):
        answer("That key was not on the list.")
    answer(f"your key  {feed.own_keys().public.hex()}")
    for key, note in feed.allowed_keys().items():
        answer(f"may send  {key}  {note}".rstrip())
    answer(f"kept in   {feed.key_folder()}")
