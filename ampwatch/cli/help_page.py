"""How the program and its commands read their options, and what --help prints.

A page of help has the examples first and fits a screen of 80 by 24 where it can. Its text is
printed as it is written; only the options are laid out here.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from ampwatch.cli.command_words import new_command, option_words

# What the overview shows, by what a person wants to do. The others work, too.
PANELS = {
    "Start": ("demo", "run", "report"),
    "Look": ("list", "watch", "dashboard", "explain", "mcp"),
    "Fix": ("compare", "prove", "plan"),
    "Data": ("import", "export", "tag"),
    "Team": ("record", "publish", "fleet", "prune", "alerts", "keys"),
}

FOR_ALL = ("-q, -v, -h", "Print less; print more; show this help.")


class CommandHelp(TyperCommand):
    """A command with options that all have, old names, and a page of help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command's words: first what all commands share."""
        is_script = not ctx.allow_interspersed_args
        words = option_words(self.name or "", args, self.get_params(ctx), is_script=is_script)
        return super().parse_args(ctx, words)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the usage, the text with its examples, and the options."""
        _write_head(self, ctx, formatter)
        rows = [_row(each) for each in self.get_params(ctx) if _is_shown(each)]
        formatter.write("\n")
        with formatter.indentation():
            formatter.write_dl([*rows, FOR_ALL])


class ProgramHelp(TyperGroup):
    """The program, or a command that has commands of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the program's words up to its command."""
        return super().parse_args(ctx, option_words("", args, [], is_script=True))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is meant, by its name of today or by its old one."""
        return super().resolve_command(ctx, [new_command(args[0]), *args[1:]])

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the text, and the commands, in panels where the program has so many."""
        is_program = ctx.parent is None
        if not is_program:
            _write_head(self, ctx, formatter)
            formatter.write("\n")
        else:
            formatter.write(f"{self.help}\n\n")
        names = PANELS if is_program else {"": self.list_commands(ctx)}
        for panel, commands in names.items():
            for at, name in enumerate(commands):
                command = self.get_command(ctx, name)
                head = f"{panel if at == 0 else '':7}" if is_program else "  "
                formatter.write(f"{head}{name:10} {_summary(command)}\n")
        formatter.write("\n")
        if is_program:
            formatter.write("Examples: ampwatch COMMAND -h. ")
            formatter.write("Options: -q quiet, -v verbose, -V version.\n")


def _summary(command: Any) -> str:
    return str(command.help or "").partition("\n")[0]


def _write_head(command: Any, ctx: Any, formatter: Any) -> None:
    words = [_usage(each) for each in command.get_params(ctx)]
    if isinstance(command, TyperGroup):
        words.append("COMMAND")
    usage = " ".join([ctx.command_path, "[OPTIONS]", *filter(None, words)])
    formatter.write(f"{usage}\n\n{command.help.rstrip()}\n")


def _usage(parameter: Any) -> str:
    """How an argument stands in the usage line; nothing for an option."""
    if parameter.param_type_name != "argument" or parameter.hidden:
        return ""
    text = parameter.metavar
    repeated = "..." if parameter.nargs == -1 else ""
    return f"{text}{repeated}" if parameter.required else f"[{text}]{repeated}"


def _is_shown(parameter: Any) -> bool:
    return not parameter.hidden and bool(parameter.help) and parameter.name != "help"


def _row(parameter: Any) -> tuple[str, str]:
    """An option or an argument: its names with what it takes, and what it does."""
    if parameter.param_type_name == "argument":
        return parameter.metavar, parameter.help
    names = sorted(parameter.opts, key=len)
    if parameter.secondary_opts:  # what somebody would type is the one that changes something
        opposite = parameter.secondary_opts
        names = opposite if parameter.default else names if parameter.default is False else [
            *names, *opposite
        ]  # fmt: skip
    takes = "" if parameter.is_flag else f" {parameter.metavar}"
    return ", ".join(names) + takes, " ".join([parameter.help, *_notes(parameter)])


def _notes(parameter: Any) -> list[str]:
    notes = []
    if parameter.show_default and not parameter.is_flag and parameter.default not in (None, "", []):
        default = parameter.default() if callable(parameter.default) else parameter.default
        notes.append(f"[default: {getattr(default, 'value', default)}]")
    if parameter.envvar:
        notes.append(f"[${parameter.envvar}]")
    return notes
