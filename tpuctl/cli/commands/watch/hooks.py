"""`watch hooks`, and what a pass does with hooks."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.hooks import load_user_hooks
from tpuctl.errors import NotFoundError, PartialError, TpuctlError
from tpuctl.lib.options import Option

if TYPE_CHECKING:
    from tpuctl.config.hooks import Hook
    from tpuctl.notify.events import HookEvent
    from tpuctl.watch.heartbeat import PassLine, Trouble

HOOKS = (
    Column("name", "HOOK"),
    Column("events", "EVENTS", give=2),
    Column("target", "TELLS", give=1),
    Column("error", "LAST ERROR", give=3),
)


def hooks(
    context: AppContext,
    test: Annotated[
        str | None, Option("Send this hook an event of the kind test, now.", metavar="NAME")
    ] = None,
) -> None:
    """List the hooks of your configuration file, or try one."""
    from tpuctl.notify.deliver import hook_cursor, sample_event

    known = load_user_hooks(context)
    if test is None:
        rows = [_row(hook, hook_cursor(context, hook).error) for hook in known]
        context.console.table(rows, HOOKS, empty="no hooks; add them to ~/.config/tpuctl/config.yaml")
        return
    found = next((hook for hook in known if hook.name == test), None)
    if found is None:
        names = ", ".join(hook.name for hook in known) or "none"
        raise NotFoundError(f"no hook called {test} (known: {names})", hint="tpuctl watch hooks")
    trouble = sender(context, context.console.say)(found, sample_event(context))
    if trouble:
        raise PartialError(f"hook {test}: {trouble}", hint="tpuctl watch hooks")
    context.console.say(f"{test} was told")


def tell_about(
    context: AppContext, lines: Sequence[PassLine], troubles: Sequence[Trouble], log: Callable[[str], None]
) -> list[str]:
    """Tells the hooks what happened; mistakes in them are notes, for the watchdog goes on without them."""
    from tpuctl.notify.deliver import deliver_events

    try:
        return deliver_events(context, load_user_hooks(context), lines, troubles, sender(context, log))
    except TpuctlError as error:
        return [f"hooks: {error.message}"]


def sender(context: AppContext, log: Callable[[str], None]) -> Callable[[Hook, HookEvent], str]:
    """Returns what sends one event to one hook."""
    from tpuctl.notify.events import render_event
    from tpuctl.notify.send import send_event

    config = context.config

    def send(hook: Hook, event: HookEvent) -> str:
        content = render_event(
            event,
            store_id=context.store.identity(),
            project=config.require_project(),
            profile=config.profile,
            host=socket.gethostname(),
        )
        return send_event(hook, content, log)

    return send


def _row(hook: Hook, error: str) -> dict[str, Any]:
    target = " ".join(hook.command) or hook.webhook_file or "a web address"
    return {"name": hook.name, "events": sorted(hook.events), "target": target, "error": error}
