"""What the code says about itself: the pages of `docs/reference/`, and tables inside other pages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

import tpuctl.cli.commands
from tests.docs.schemas import environment_schema, file_help, fleet_schema, run_schema
from tpuctl import __version__
from tpuctl.cli.app import app
from tpuctl.cli.registry import COMMANDS, DAILY, GROUPS
from tpuctl.config.file import LOCAL_ONLY
from tpuctl.config.hooks import EVENT_NOTES
from tpuctl.config.schema import render_example
from tpuctl.config.settings import SETTINGS
from tpuctl.disks.plan import STEPS
from tpuctl.envs.spec import BuiltFrom, EnvironmentSpec, ExtraFile, KernelSettings, PythonArchive, Unmanaged
from tpuctl.errors import EXIT_MEANINGS, all_error_classes
from tpuctl.fleet.file import FleetRequest
from tpuctl.fleet.plan import CHANGE_NOTES
from tpuctl.lib.options import Flag, Option, flags_of, registry
from tpuctl.lint.rules import load_rules
from tpuctl.model.attempts import CAUSE_NOTES
from tpuctl.model.records import RUN_STATE_NOTES
from tpuctl.model.roles import PROJECT, ROLES, Who
from tpuctl.model.run_spec import PolicyRequest, RunRequest
from tpuctl.model.shipped_files import load_accelerators, load_failure_table
from tpuctl.model.slice_spec import SliceRequest
from tpuctl.runs import states as run_states
from tpuctl.runs.failure import parse_signatures
from tpuctl.slices import states as slices_states
from tpuctl.slices.rules import EXCLUDES, NEEDS
from tpuctl.slices.states import FINAL_STATES, STATE_NOTES

WIDTH = 80
WRITTEN = "<!-- Written by `make docs` from the code: do not edit. -->"


def render_version() -> str:
    return f"This is tpuctl {__version__}. It needs Python 3.11 to 3.14 on Linux; macOS is untested."


DOZEN = ("runs", "why", "doctor")
"""What a reader of the README wants to know besides the commands of every day."""


def render_command_table() -> str:
    """A line for each of the dozen commands of most days, with a link to its help."""
    page = "docs/reference/commands.md"
    shown = [*GROUPS[DAILY], *(each for each in COMMANDS if each.name in DOZEN)]
    rows = [(f"[`{each.name}`]({page}#tpuctl-{each.name})", each.summary) for each in shown]
    return _table(("command", "what it does"), rows)


def render_modules() -> str:
    """Where the code of each command is."""
    folder = Path(tpuctl.cli.commands.__file__).parent
    rows = []
    for each in COMMANDS:
        module, _ = each.code
        file = module + ("/" if (folder / module).is_dir() else ".py")
        rows.append((f"`tpuctl {each.name}`", f"`tpuctl/cli/commands/{file}`"))
    return _table(("command", "file"), rows)


def render_commands() -> str:
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="tpuctl", terminal_width=WIDTH)  # type: ignore[arg-type]
    parts = ["What `--help` prints, for every command.", _console(root.get_help(context))]
    parts += [f"## `{path}`\n\n{_console(command.get_help(child))}" for path, command, child in groups()]
    return _page("Commands", *parts)


def groups() -> Iterator[tuple[str, Any, Any]]:
    """Every command with its path, in the order of the help: `tpuctl up`, `tpuctl sim`, `tpuctl sim up`, …"""
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="tpuctl", max_content_width=WIDTH, terminal_width=WIDTH)  # type: ignore[arg-type]
    for entry in COMMANDS:
        command = root.get_command(context, entry.name)  # type: ignore[attr-defined]
        child = typer.Context(command, info_name=entry.name, parent=context, terminal_width=WIDTH)
        yield f"tpuctl {entry.name}", command, child
        for name in getattr(command, "list_commands", lambda _: ())(child):
            verb = command.get_command(child, name)
            verb_context = typer.Context(verb, info_name=name, parent=child, terminal_width=WIDTH)
            yield f"tpuctl {entry.name} {name}", verb, verb_context


def render_settings() -> str:
    rows = [
        (
            f"`{s.name}`",
            s.type,
            f"`{s.env}`",
            "no" if s.name in LOCAL_ONLY else "yes",
            _default(s.default),
            s.help,
        )
        for s in SETTINGS
    ]
    return _page(
        "Settings",
        """\
A value comes from the first place that has one:

1. flags of the command,
2. environment variables,
3. `tpuctl.yaml` in this directory or above,
4. your own `~/.config/tpuctl/config.yaml`,
5. gcloud's active configuration (project, zone and account only),
6. the default.

`tpuctl config show` prints each value and where it came from. Both files have a key `settings`:

```yaml
settings:
  project: my-project
  zone: [us-central2-b]
  tier: spot
  checkpoint_bucket: gs://my-bucket/checkpoints
```

Some settings are refused in `tpuctl.yaml`, which may come with somebody's repository: they start programs,
weaken trust, or lead credentials to another place. `TPUCTL_STATE_DIR` moves tpuctl's own files, which lie in
`~/.local/state/tpuctl` otherwise.""",
        _table(("setting", "type", "variable", "in `tpuctl.yaml`", "default", "meaning"), rows),
    )


def _default(value: Any) -> str:
    if value in (None, (), ""):
        return "–"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def render_errors() -> str:
    codes: dict[int, list[str]] = {status: [] for status in EXIT_MEANINGS}
    for cls in all_error_classes():
        codes[cls.exit_code].append(cls.code)
    rows = [
        (str(status), ", ".join(f"`{code}`" for code in codes[status]) or "–", meaning)
        for status, meaning in EXIT_MEANINGS.items()
    ]
    return _page(
        "Exit status and error codes",
        'With `--json` an error is a document on stdout: `{"error": {"code", "message", "hint", "details"}}`.',
        _table(("exit", "codes", "meaning"), rows),
        "`exec` on one worker passes on the exit status of the command; on several it is 0, 3 when some "
        "failed, 1 when all did. `ssh` passes it on, too, and returns 255 when there was no connection.",
    )


def render_states() -> str:
    slices = [
        (f"`{state}`", who, "yes" if state in FINAL_STATES else "no", meaning)
        for state, (who, meaning) in STATE_NOTES.items()
    ]
    runs = [
        (f"`{state}`", "yes" if state.final else "no", meaning) for state, meaning in RUN_STATE_NOTES.items()
    ]
    causes = [(f"`{cause}`", budget, meaning) for cause, (budget, meaning) in CAUSE_NOTES.items()]
    return _page(
        "States",
        "## States of a slice",
        _table(("state", "set by", "final", "meaning"), slices),
        "## States of a run",
        _table(("state", "final", "meaning"), runs),
        "## How an attempt ends",
        "The cause decides which budget is charged: see [evidence and preemption]"
        "(../concepts/evidence-and-preemption.md).",
        _table(("cause", "budget", "meaning"), causes),
    )


def render_state_tables() -> str:
    """What follows what, as the code has it: of slices, disks and runs."""
    slices = {
        (str(state), str(event)): _step(to.effect, to.state, state)
        for (state, event), to in slices_states.TRANSITIONS.items()
    }
    disks = {
        ("wanted" if wanted else "not wanted", str(seen)): f"`{step}`" for (wanted, seen), step in STEPS.items()
    }
    runs = {
        (str(phase), str(event)): _step(to.cause or to.effect, to.phase, phase)
        for (phase, event), to in run_states.TRANSITIONS.items()
    }
    return _page(
        "State tables",
        "A row for each event, a column for each state: what is done, and the state that follows where\n"
        "it is another one. `wait` means that nothing is done. An empty cell is a pair that is ignored on\n"
        "purpose, or that cannot be; tests walk all pairs.",
        "## Slices",
        "`TRANSITIONS` and `IGNORED` of `tpuctl/slices/states.py`; events are what the cloud shows.\n"
        "`down` leads to `deleting` from everywhere.",
        _matrix(slices),
        "## Disks",
        "`STEPS` of `tpuctl/disks/plan.py`; events are what Compute Engine shows.",
        _matrix(disks),
        "## Runs",
        "`TRANSITIONS` and `IGNORED` of `tpuctl/runs/states.py`. Hosts on which an attempt is prepared or\n"
        "started report `prepared` to `drifted` and `start-sent`; the other events are what a pass sees.\n"
        "Where an attempt ends the cell has the cause; then the run waits for the next one, or is over.",
        _matrix(runs),
    )


def _step(effect: str | None, to: str, state: str) -> str:
    done = f"`{effect}`" if effect is not None else "" if to != state else "wait"
    return done if to == state else f"{done} → {to}".strip()


def _matrix(cells: Mapping[tuple[str, str], str]) -> str:
    """A row for each event, a column for each state, both in the order in which `cells` names them first."""
    states, events = (list(dict.fromkeys(pair[place] for pair in cells)) for place in (0, 1))
    rows = [(f"`{event}`", *(cells.get((state, event), "") for state in states)) for event in events]
    return _table(("event", *states), rows)


def render_failures() -> str:
    blanks = {"run": "RUN", "slice": "SLICE", "worker": "N", "mend": "the command that is named"}
    rows = [
        (
            f"`{row.id}`",
            str(row.whose),
            "yes" if row.retry else "no",
            _filled(row.meaning, {**dict.fromkeys(row.pattern.groupindex, "…"), **blanks}),
            _filled(row.remedy, {**dict.fromkeys(row.pattern.groupindex, "…"), **blanks}),
        )
        for row in parse_signatures(load_failure_table())
    ]
    return _page(
        "Failures by name",
        "What the last words of a worker mean: the first row that fits is its failure, and that of the run is "
        "the failure of the worker that ended first. The texts are in "
        "[`manifests/tables/failures.yaml`](../../manifests/tables/failures.yaml), each with its source. See "
        "[evidence and preemption](../concepts/evidence-and-preemption.md#what-it-means).",
        _table(("failure", "whose", "tried again", "meaning", "what to do"), rows),
    )


def render_lint() -> str:
    """A section for each rule."""
    parts = []
    for rule in load_rules():
        on = ", ".join(f"`{each}`" for each in rule.backends) + (
            "; PyTorch with `--port`" if rule.porting else ""
        )
        where = " In code that the step loop reaches." if rule.gate == "hot" else ""
        rows = [(f"`{name}`", row.since, f"`{row.now}`") for name, row in rule.removed.items()]
        names = _table(("gone", "since", "now"), rows) if rows else ""
        parts += [
            f"## {rule.code}",
            f"**{rule.name}**, {rule.severity}, for {on}.{where}",
            f"What happens: {rule.happens}",
            f"Rewrite: {rule.rewrite}",
            *([names] if names else []),
            f"Source: {rule.source}.",
        ]
    return _page(
        "Rules of `tpuctl lint`",
        "How to use them: [before it costs chips](../tasks/lint.md). The texts are in "
        "[`lint_rules.yaml`](../../manifests/tables/lint_rules.yaml). How often they were right on "
        "code of others: [precision](../develop/lint.md).",
        _table(
            ("code", "name", "severity", "for"),
            [
                (
                    f"[{r.code}](#{r.code.lower()})",
                    r.name,
                    str(r.severity),
                    ", ".join(f"`{b}`" for b in r.backends),
                )
                for r in load_rules()
            ],
        ),
        *parts,
    )


def _filled(text: str, words: Mapping[str, str]) -> str:
    return text.format_map(words).replace("|", "\\|")


def render_events() -> str:
    return _table(("event", "sent when"), [(f"`{name}`", note) for name, note in EVENT_NOTES.items()])


def render_accelerators() -> str:
    catalog = load_accelerators()
    rows = []
    for name in catalog.generations:
        sizes = [found for found in catalog.types.values() if found.generation == name]
        zones = sorted({zone for found in sizes for zone in found.zones})
        hosts = f"{min(s.hosts for s in sizes)} to {max(s.hosts for s in sizes)}"
        rows.append((name, f"`{sizes[0].name}` … `{sizes[-1].name}`", hosts, ", ".join(zones)))
    return _page(
        "Accelerator types",
        "`tpuctl types` lists every type with its chips, hosts, topology, zones and price.",
        _table(("generation", "types", "hosts", "zones"), rows),
        """\
These are tables of the program, and tables grow old. A zone or size that they do not have is requested all
the same, with a warning and after a look at the API's own list (`acceleratorTypes.list`). Only a zone that the
API does not know, and a size that nobody lists, are refused as typing mistakes. `tpuctl sim up --catalog FILE`
rehearses it.""",
    )


def render_capacity_flags() -> str:
    options = registry(SliceRequest).items()
    rows = [
        _flag(flag, option)
        for name, option in options
        for flag in flags_of(name, option)
        if flag.name.startswith("--")
    ]
    return _page(
        "Capacity flags",
        """\
Flags of `up` and of `run --up`. A contradiction, or something that the zone does not have, is refused before
anything is asked of the cloud. A slice whose time is over is cleaned up and not requested again until you type
`up`: after `--valid-until`, when no capacity came within `--valid-for`, and at the end of its run duration.""",
        _table(("flag", "asks for", "not with", "needs", "in the API"), rows),
    )


def _flag(flag: Flag, option: Option) -> tuple[str, ...]:
    excluded = [f"`{other}`" for other in EXCLUDES.get(flag.name, ()) if other != flag.name]
    needed = NEEDS.get(flag.name)
    return (
        f"`{flag.name} {option.metavar}`".replace(" `", "`"),
        flag.help,
        ", ".join(excluded) or "–",
        f"`{needed[0].split()[0]}`" if needed else "–",
        flag.api or "–",
    )


def render_fleet_file() -> str:
    parts = ["How to use it: [the fleet file](../tasks/fleet-file.md)."]
    for title, shape in (
        ("fleet", FleetRequest),
        ("fleet.slices.NAME", SliceRequest),
        ("fleet.runs.NAME", RunRequest),
        ("fleet.runs.NAME.policy", PolicyRequest),
    ):
        rows = [
            (f"`{name}`", _example(option), file_help(shape, name)) for name, option in registry(shape).items()
        ]
        parts += [f"## `{title}`", _table(("key", "example", "meaning"), rows)]
    changes = [(f"`{change}`", meaning) for change, meaning in CHANGE_NOTES.items()]
    parts += ["## Changes", "What `tpuctl diff` shows:", _table(("change", "meaning"), changes)]
    return _page("Keys of the fleet file", *parts)


def _example(option: Option) -> str:
    return f"`{render_example(option.examples[0])}`" if option.examples else "–"


def render_environment_schema() -> str:
    """The schema of environment files, as it is published."""
    return json.dumps(environment_schema(), indent=2) + "\n"


def render_run_schema() -> str:
    """The schema of manifests of runs, as it is published."""
    return json.dumps(run_schema(), indent=2) + "\n"


def render_schema() -> str:
    """The schema of fleet files, as it is published."""
    return json.dumps(fleet_schema(), indent=2) + "\n"


def render_environment_file() -> str:
    parts = ["How to use it: [packages and environments](../tasks/environments.md)."]
    for title, shape in (
        ("envs/NAME.yaml", EnvironmentSpec),
        ("files", ExtraFile),
        ("files.built_from", BuiltFrom),
        ("python_archive", PythonArchive),
        ("unmanaged", Unmanaged),
        ("kernel", KernelSettings),
    ):
        rows = [(f"`{name}`", _example(option), option.help) for name, option in registry(shape).items()]
        parts += [f"## `{title}`", _table(("key", "example", "meaning"), rows)]
    return _page("Keys of an environment file", *parts)


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", WRITTEN, *parts)) + "\n"


def _console(text: str) -> str:
    return f"```text\n{text}\n```"


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def render_roles() -> str:
    """The roles of a person and of the hosts."""
    lines = ["| whose | role | on | for |", "|---|---|---|---|"]
    for whose, who in ((Who.YOU, "yours"), (Who.HOSTS, "the hosts' account's")):
        lines += [
            f"| {who} | `{each.role}` | {each.on} | {each.purpose} |" for each in ROLES if whose in each.who
        ]
    return "\n".join(lines)


def render_watchdog_roles() -> str:
    """The commands that give a watchdog's account its roles."""
    ours = [each for each in ROLES if Who.WATCHDOG in each.who]
    everywhere = [each.role for each in ours if each.on == PROJECT or each.permissions]
    on_buckets = [each for each in ours if each.role not in everywhere]
    member = '--member "serviceAccount:$ACCOUNT"'
    buckets = [
        f"gcloud storage buckets add-iam-policy-binding gs://BUCKET {member} --role {each.role}  # {each.on}"
        for each in on_buckets
    ]
    return "\n".join(
        [
            "```sh",
            "gcloud iam service-accounts create tpuctl-watch",
            "ACCOUNT=tpuctl-watch@$PROJECT.iam.gserviceaccount.com",
            "for role in \\",
            *(f"    {role} \\" for role in everywhere[:-1]),
            f"    {everywhere[-1]}; do",
            f'  gcloud projects add-iam-policy-binding "$PROJECT" {member} --role "$role"',
            "done",
            *buckets,
            "```",
        ]
    )
