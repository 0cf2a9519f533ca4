"""Where exceptions become messages and exit codes; nothing else in tpuctl prints an error or exits."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import typer

from tpuctl.cli.invocation import Invocation
from tpuctl.errors import FULL_DISK, BugError, InterruptedByUserError, TpuctlError, UsageError, full_disk_hint
from tpuctl.lib.text import suggest

T = TypeVar("T")


def guarded(shared: Invocation, work: Callable[[], T]) -> T:
    """Runs `work`; whatever it raises is reported and leaves as `typer.Exit` with the right status."""
    try:
        return _run_reported(shared, work)
    except OSError as error:  # the report itself: stdout takes no help and no document, stderr may
        shared.json = False
        raise _refused_here(shared, error) from error


def _run_reported(shared: Invocation, work: Callable[[], T]) -> T:
    try:
        return work()
    except typer.Exit:
        raise
    except BrokenPipeError:
        raise _reader_went_away() from None
    except TpuctlError as error:
        if isinstance(error, UsageError):  # perhaps of a word that stands before `--json` is read
            shared.json = _wants_json(shared)
        raise _report(shared, error) from error
    except typer.TyperException as error:
        noun = getattr(error, "ctx", None)
        if (
            type(error).__name__ == "NoArgsIsHelpError" and noun is not None
        ):  # a noun alone, like `tpuctl` alone
            typer.echo(noun.get_help())
            raise typer.Exit(0) from None
        shared.json = _wants_json(shared)
        raise _report(shared, _from_typer(error)) from error
    except (KeyboardInterrupt, typer.Abort) as error:
        raise _report(shared, _interruption(error)) from error
    except OSError as error:
        raise _refused_here(shared, error) from error
    except Exception as error:  # the last resort: a crash report instead of a traceback
        raise _report(shared, _unexpected(shared, error)) from error


_UP, _DOWN, _SHOW = ("up", "add", "install"), ("down", "rm", "uninstall"), ("status", "show")
_ELSEWHERE: Mapping[str, Sequence[str]] = {
    "cancel": ("stop", "uninstall"),
    "check": ("doctor", "status", "show"),
    "create": _UP,
    "delete": _DOWN,
    "describe": _SHOW,
    "destroy": _DOWN,
    "get": ("ls", *_SHOW),
    "jobs": ("runs",),
    "kill": ("stop", "down"),
    "launch": ("run --up v4-8", *_UP),
    "list": ("ls", *_SHOW),
    "ps": ("ls",),
    "queue": ("runs",),
    "remove": _DOWN,
    "resize": ("up",),
    "rm": _DOWN,
    "scale": ("up",),
    "scp": ("cp",),
    "start": _UP,
    "stop": _DOWN,
    "submit": ("run",),
    "terminate": _DOWN,
}
"""Verbs of gcloud, kubectl and SkyPilot, and ours in their place: the first that the noun has."""


_SETTINGS = "write settings: {KEY: VALUE} into ~/.config/tpuctl/config.yaml, or into tpuctl.yaml"
_BY_HAND: Mapping[tuple[str, str], str] = dict.fromkeys((("config", "set"), ("config", "unset")), _SETTINGS)
"""Verbs in whose place a file is edited."""


def unknown_command(name: str, known: Sequence[str], *, group: str = "") -> UsageError:
    """The error for a word that is no command, with ours for what it means elsewhere, or the nearest."""
    prefix = f"tpuctl {group}".strip()
    if (group, name) in _BY_HAND:
        return UsageError(f"no such command: {prefix} {name}", hint=_BY_HAND[group, name])
    ours = [word for word in _ELSEWHERE.get(name.lower(), ()) if word.partition(" ")[0] in known]
    near = ours[0] if ours else suggest(name, known)
    hint = f"did you mean `{prefix} {near}`?" if near else f"{prefix} --help"
    return UsageError(f"no such command: {prefix} {name}", hint=hint)


def error_document(error: TpuctlError, hint: str | None) -> dict[str, object]:
    """The `--json` form of an error."""
    return {
        "error": {
            "code": error.code,
            "message": clip(error.message),
            "hint": hint,
            "details": dict(error.details),
        }
    }


MAX_WORD, KEPT = 1000, (500, 100)
MAX_TEXT = 8000
"""Characters of a message: an argument of 10 kB is shown by its beginning and end."""


def clip(text: str) -> str:
    """`text` with what is too long in it cut."""
    begin, end = KEPT
    cut = re.sub(rf"\S{{{MAX_WORD},}}", lambda found: f"{found[0][:begin]}…{found[0][-end:]}", text)
    return cut if len(cut) <= MAX_TEXT else f"{cut[:MAX_TEXT]}…"


def check_arguments(shared: Invocation) -> None:
    """Every argument is text. Raises UsageError: what is not cannot be stored, sent to a host, or be JSON."""
    for number, word in enumerate(shared.arguments, 1):
        try:
            word.encode()
        except UnicodeEncodeError as error:
            shared.json = _wants_json(shared)
            shown = ascii(os.fsencode(word))[1:]
            raise UsageError(
                f"argument {number} is not UTF-8 text: {shown}", hint="rename the file, or type it again"
            ) from error


def _wants_json(shared: Invocation) -> bool:
    return shared.json or "--json" in _own_arguments(shared)


def _own_arguments(shared: Invocation) -> list[str]:
    arguments = shared.arguments
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _report(shared: Invocation, error: TpuctlError) -> typer.Exit:
    from tpuctl.cli.console import paint, render_json, wants_colour
    from tpuctl.cli.wrapping import hang, hint_lines, with_first

    message = clip(error.message)
    hint = clip(with_first(error.hint, shared.gcloud_first)) if error.hint else None
    if shared.start_server and error.details.get("refused_connection"):
        hint = f"{shared.start_server}; nothing listens there any more"
    if shared.json:
        typer.echo(render_json(error_document(error, hint)))
    elif isinstance(error, InterruptedByUserError):
        told = f"{message}; {hint}" if hint else message
        typer.echo(hang(told, sys.stderr, indent=2), err=True)
    else:
        told = hang(f"{message} ({error.code})", sys.stderr, first="error: ")
        typer.echo(
            told.replace("error: ", paint("error: ", "failed", colour=wants_colour(sys.stderr)), 1), err=True
        )
        if hint:
            typer.echo(hint_lines(hint, sys.stderr), err=True)
    return typer.Exit(error.exit_code)


_PROGRAMS = {
    "tpuctl run": "tpuctl run SCRIPT -- {}, or of a command: tpuctl run -- COMMAND {}",
    "tpuctl exec": "tpuctl exec NAME -- COMMAND {}",
}
"""Commands with somebody else's options behind a `--`."""


_NOT_NEEDED = {
    "tpuctl cp": (frozenset({"-r", "-R", "-a", "--recursive", "--archive"}), "directories are copied whole"),
    "tpuctl up": (frozenset({"--name"}), "the name is the second word, as in `tpuctl up v4-8 NAME`"),
    "tpuctl logs": (frozenset({"-n", "--lines", "--tail"}), "`tpuctl logs RUN | tail` has the last lines"),
}
"""Options of other tools that people type, and why there is none here."""


def _from_typer(error: typer.TyperException) -> UsageError:
    """Typer's own complaint in our words."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "tpuctl"
    hint = f"{path} --help"
    possible = getattr(error, "possibilities", None)
    # An option without its value has a name, too.
    option = getattr(error, "option_name", None) if hasattr(error, "possibilities") else None
    example = _PROGRAMS.get(path)
    known, why = _NOT_NEEDED.get(path, (frozenset(), ""))
    if option in known:
        return UsageError(f"{option} is not needed: {why}", hint=f"the same command without {option}")
    if option is not None and example is not None:
        near = _near_option(str(option), possible or [])
        meant = f"did you mean {near}? " if near else ""
        hint = f"{meant}options of your program go after --: {example.format(option, option)}"
        return UsageError(f"no such option: {option}", hint=hint)
    if option is not None and context is not None and option in _options_of(context.find_root()):
        return UsageError(
            f"{option} goes before the command", hint=f"tpuctl {option} … {path.removeprefix('tpuctl ')} …"
        )
    if option is not None:
        near = _near_option(str(option), possible or [])
        hint = f"did you mean {near}? else {hint}" if near else hint
        return UsageError(f"no such option: {option}", hint=hint)
    message = _plain(error.format_message().rstrip("."))
    return UsageError(message[:1].lower() + message[1:], hint=hint)


def _options_of(context: typer.Context) -> set[str]:
    """All options that the command of `context` takes itself."""
    return {word for param in context.command.params for word in getattr(param, "opts", ())}


def _near_option(option: str, known: Sequence[str]) -> str:
    """The one that was probably meant, or an empty string; the dashes that all begin with make none alike."""
    words = {each.lstrip("-"): each for each in known}
    return words.get(suggest(option.lstrip("-"), words) or "", "")


def _plain(message: str) -> str:
    """What a converter says of a value, for people: pydantic, which Typer uses, speaks of its `Input`."""
    message = message.replace("Value error, ", "")
    text = re.sub(r", unable to parse string as an? \w+$", "", message)
    return text.replace("Input should be a valid integer", "it should be a whole number").replace(
        "Input should be", "it should be"
    )


_NOT_ALLOWED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_NOT_READABLE = frozenset({errno.EIO, errno.ESTALE})


def _refused_here(shared: Invocation, error: OSError) -> typer.Exit:
    """This machine would not have it: a full disk, a broken one, a read-only directory. Else it is a bug."""
    if error.errno == errno.ENAMETOOLONG:
        told = f"the name of a file is too long: {error.filename or error}"
        return _report(shared, UsageError(told, hint="no file has a name of more than 255 bytes"))
    if error.errno not in FULL_DISK | _NOT_ALLOWED | _NOT_READABLE:
        return _report(shared, _unexpected(shared, error))
    if not error.filename:  # stdout: it leads nowhere from now on, so that the exit status stays ours
        _silence_stdout()
        shared.json = False
    place = f"{error.filename}: " if error.filename else ""
    hint = (
        full_disk_hint(str(Path(error.filename or ".").parent))
        if error.errno in FULL_DISK
        else _other_place(error)
    )
    return _report(shared, TpuctlError(f"{place}{str(error.strerror).lower()}", hint=hint))


def _other_place(error: OSError) -> str | None:
    from tpuctl.config.load import find_state_base

    base = find_state_base(os.environ, Path.home())
    path = Path(str(error.filename or ""))
    if not (path == base or path in base.parents or base in path.parents):
        return None
    return "TPUCTL_STATE_DIR=DIR names another directory for what tpuctl keeps"


def _silence_stdout() -> None:
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())


def _unexpected(shared: Invocation, error: Exception) -> TpuctlError:
    """A bug, unless it is what Ctrl-C leaves behind in the midst of a library: threading may then release a
    lock that it does not hold."""
    import traceback

    from tpuctl.cli.logging import write_crash_report

    report = "".join(traceback.format_exception(error))
    path = write_crash_report(shared.arguments, report)
    if follows_ctrl_c(error):
        return _interruption(error)
    where = f"crash report: {path}" if path else None
    return BugError(f"unexpected {type(error).__name__}: {error}", hint=where)


def follows_ctrl_c(error: BaseException) -> bool:
    """It is Ctrl-C, or what that leaves behind in the midst of a library."""
    earlier = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt | typer.Abort) or (
        earlier is not None and follows_ctrl_c(earlier)
    )


def _interruption(error: BaseException) -> InterruptedByUserError:
    """What the command said to Ctrl-C, and what goes on without it, though closing what it had in use failed
    after that."""
    if isinstance(error, InterruptedByUserError):
        return error
    earlier = error.__cause__ or error.__context__
    return InterruptedByUserError("interrupted") if earlier is None else _interruption(earlier)


def _reader_went_away() -> typer.Exit:
    """Whoever read our stdout closed it (`| head`): stop quietly, flush into nothing."""
    _silence_stdout()
    return typer.Exit(1)
