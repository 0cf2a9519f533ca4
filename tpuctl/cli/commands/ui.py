"""`tpuctl ui`: the fleet in a browser of this machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Annotated

from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.lib.options import Option

INSTALL = "pip install 'tpuctl[ui]'"


def ui(
    context: AppContext,
    port: Annotated[int, Option("Which port of this machine; any free one if left out.", metavar="N")] = 0,
    no_open: Annotated[bool, Option("Open no browser.")] = False,
    publish: Annotated[
        str | None, Option("Write the pages as files there, once.", metavar="gs://BUCKET/PREFIX")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Show slices, runs, costs and capacity in a browser.

    The page is served to this machine alone, keeps itself fresh, and changes nothing: it shows commands to
    copy. The address that is printed opens it once, in one browser. From another machine, forward the port
    with `ssh -L PORT:127.0.0.1:PORT`.

    With --publish the pages become objects of a bucket, for who may read it; only what differs is written.
    `tpuctl watch install --publish` has each pass do that.
    """
    if publish is not None:
        if port or no_open:
            raise UsageError(
                "--publish serves nothing: --port and --no-open say nothing",
                hint=f"tpuctl ui --publish {publish}",
            )
        _publish(context, publish, dry_run=dry_run)
        return
    if dry_run:
        raise UsageError("--dry-run goes with --publish: a served page changes nothing", hint="tpuctl ui")
    try:
        from tpuctl.ui.access import Gate
        from tpuctl.ui.server import LOOPBACK, listen, serve
    except ImportError as error:
        raise UsageError(
            f"the page needs packages that are not installed: {error.name}", hint=INSTALL
        ) from error
    context.store.identity()  # refused here and not on the page, where the store cannot be read
    listening = listen(port)
    number = int(listening.getsockname()[1])
    gate = Gate(number, again="tpuctl ui", user=os.getuid())
    address = f"http://{LOOPBACK}:{number}/?token={gate.token}"
    with context.interruptible("the page is closed; slices and runs are as they were"):
        context.console.line(address)
        context.console.say("opens the page once; Ctrl-C ends it")
        with TemporaryDirectory(prefix="tpuctl-ui-") as folder:
            if not no_open:  # some browsers run in this terminal, and come back when they are closed
                Thread(target=_open_browser, args=(context, address, Path(folder)), daemon=True).start()
            _load_adapters(context)
            serve(context, gate, listening)


def _load_adapters(context: AppContext) -> None:
    """While the browser starts: else the first page waits for Google's libraries."""
    from tpuctl.model.hosts import Api

    with suppress(TpuctlError):  # without credentials there is a page all the same, which says so
        for api in Api:
            context.tpus(api)


def _publish(context: AppContext, where: str, *, dry_run: bool) -> None:
    from tpuctl.lib.names import check_page_uri
    from tpuctl.lib.text import counted
    from tpuctl.ui.publish import PUBLIC, UNKNOWN, publish

    place, console = check_page_uri(where), context.console
    with context.interruptible("the pages that are there are whole; the same command goes on"):
        done = publish(context, place, dry_run=dry_run)
    bucket = f"gs://{place.split('/')[2]}"
    if done.public:
        hint = f"gcloud storage buckets update {bucket} --public-access-prevention"
        console.warn(f"{PUBLIC.format(place=place)}; `{hint}` ends that")
    elif done.public is None:
        hint = f"gcloud storage buckets get-iam-policy {bucket}"
        console.warn(f"{UNKNOWN.format(place=place)}; `{hint}` shows it")
    if dry_run:
        for name in done.written:
            console.line(f"would write: {place}/{name}")
        for name in done.deleted:
            console.line(f"would delete: {place}/{name}")
        return
    if done.refused:
        console.say(f"another tpuctl wrote {counted(len(done.refused), 'page')} meanwhile")
    console.say(
        f"wrote {counted(len(done.written), 'page')}, {done.same} as before, deleted {len(done.deleted)}"
    )
    console.line(done.address)


def _open_browser(context: AppContext, address: str, folder: Path) -> None:
    """In a browser, where this machine has one. It is given a file that only this user can read: what stands in
    the arguments of a process all users see."""
    import webbrowser

    page = folder / "open.html"
    page.write_text(f'<meta http-equiv="refresh" content="0; url={address}">')
    try:
        shown = webbrowser.open(page.as_uri())
    except webbrowser.Error:
        shown = False
    if not shown:
        context.console.say("no browser was found here: open the address in one")
