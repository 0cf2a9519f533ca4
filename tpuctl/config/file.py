"""The frame of a configuration file: its sections, its settings, and all that is wrong with them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpuctl.config.schema import Problem
from tpuctl.config.settings import BY_NAME, ENDPOINTS, parse_value
from tpuctl.config.yaml_positions import Marked, MarkedMapping, Position, plain
from tpuctl.errors import BadConfigError
from tpuctl.lib.text import counted, suggest

SECTIONS = ("settings", "fleet")
"""What a project file may hold."""
_OF_FLEET = ("name", "slices", "runs")
"""Keys of a fleet, which people put on the top level."""
LOCAL_ONLY = frozenset(
    {"ping_url", "publish", "proxy_command", "jump_host", "host_keys", "token_file", *ENDPOINTS},
)
"""Settings that a project file cannot hold: they run programs, weaken trust, or lead credentials away."""
USER_FILE = "~/.config/tpuctl/config.yaml"


def frame_problems(marked: Marked | None, text: str, known: Sequence[str]) -> list[Problem]:
    """What is wrong with the top level of a file with sections `known`, and with its settings."""
    if marked is None:
        return []
    if not isinstance(marked, MarkedMapping):
        return [Problem(Position(1, 1), "must hold keys and values", "settings: {project: my-project}")]
    problems = []
    stray = [key for key in marked.entries if key in BY_NAME]
    if stray:
        problems.append(_stray(marked, stray, text))
    for key, place in marked.keys.items():
        if key == "hooks" and key not in known:
            why = "hooks run programs on this machine and are read from your own configuration file only"
            problems.append(Problem(place, why, f"move them to {USER_FILE}"))
        elif key in _OF_FLEET and "fleet" in known:
            problems.append(
                Problem(place, f"{key!r} belongs below fleet:", f"fleet: {{name: lab, {key}: {{…}}}}")
            )
        elif key not in known and key not in BY_NAME:
            problems.append(unknown(key, place, known))
    if "settings" in marked.entries and "settings" in known:
        problems += settings_problems(marked.entries["settings"], "settings", marked.keys["settings"])
        problems += _not_local(marked.entries["settings"]) if known == SECTIONS else []
    return problems


def _not_local(settings: Marked) -> list[Problem]:
    """A project file may come with somebody else's code: it does not say what runs here."""
    keys = settings.keys if isinstance(settings, MarkedMapping) else {}
    return [
        Problem(place, f"{key} is read from your own configuration only", f"move it to {USER_FILE}")
        for key, place in keys.items()
        if key in LOCAL_ONLY
    ]


def settings_problems(marked: Marked, path: str, at: Position) -> list[Problem]:
    """What is wrong with a mapping of settings; an empty one is fine."""
    if plain(marked) is None:
        return []
    if not isinstance(marked, MarkedMapping):
        return [Problem(at, f"{path} must hold keys and values", f"{path}: {{project: my-project}}")]
    problems = []
    for key, value in marked.entries.items():
        if key not in BY_NAME:
            problems.append(unknown(key, marked.keys[key], list(BY_NAME)))
            continue
        try:
            if plain(value) is not None:
                parse_value(BY_NAME[key], plain(value), path)
        except BadConfigError as error:
            problems.append(Problem(value.place, error.message, error.hint))
    return problems


def unknown(key: str, place: Position, known: Sequence[str]) -> Problem:
    """A key that is none, with the nearest one."""
    near = suggest(key, known)
    guess = f"; did you mean {near!r}?" if near else ""
    hint = f"change it to {near!r}" if near else f"known keys: {', '.join(sorted(known))}"
    return Problem(place, f"unknown key {key!r}{guess}", hint)


def _stray(marked: MarkedMapping, stray: Sequence[str], text: str) -> Problem:
    """Settings on the top level; where nothing else is there, the file as it should be."""
    named = ", ".join(map(repr, stray))
    belong = "belongs" if len(stray) == 1 else "belong"
    message = f"{named} {belong} below settings:"
    if len(stray) != len(marked.entries):
        return Problem(marked.keys[stray[0]], message, f"move {named} below the key settings")
    lines = [line for line in text.splitlines() if not line.startswith(("---", "...", "%"))]
    mended = ["settings:", *(f"  {line}" if line.strip() else "" for line in lines)]
    return Problem(marked.keys[stray[0]], message, "write the file like this:\n" + "\n".join(mended))


def file_error(path: str, problems: Sequence[Problem]) -> BadConfigError:
    """All problems of a file as one error, in the order of the file."""
    return _files_error({path: problems})


def joined(errors: Sequence[BadConfigError]) -> BadConfigError:
    """One error for the mistakes in all files; what else is wrong waits until those are mended."""
    found: dict[str, dict[Problem, None]] = {}
    for error in errors:
        for each in error.details.get("problems", ()):
            problem = Problem(Position(each["line"], each["column"]), each["message"], each["hint"])
            found.setdefault(each["file"], {})[problem] = None
    return _files_error({path: list(problems) for path, problems in found.items()}) if found else errors[0]


def _files_error(problems: Mapping[str, Sequence[Problem]]) -> BadConfigError:
    ordered = [(path, each) for path in problems for each in sorted(problems[path], key=lambda p: p.place)]
    lines = [f"{path}:{problem.place}: {problem.message}" for path, problem in ordered]
    details = {
        "problems": [
            {
                "file": path,
                "line": p.place.line,
                "column": p.place.column,
                "message": p.message,
                "hint": p.hint,
            }
            for path, p in ordered
        ]
    }
    if len(lines) == 1:
        return BadConfigError(lines[0], hint=ordered[0][1].hint, details=details)
    alone = len(problems) == 1
    hints = [f"{p.place if alone else f'{path}:{p.place}'}: {p.hint}" for path, p in ordered if p.hint]
    message = f"{counted(len(lines), 'problem')} in {' and '.join(problems)}\n"
    message += "\n".join(f"  {line}" for line in lines)
    return BadConfigError(message, hint="\n      ".join(hints) or None, details=details)
