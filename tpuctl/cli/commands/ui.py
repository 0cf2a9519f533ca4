"""`tpuctl ui`: the fleet in a browser of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Annotated

from tpuctl.cli.context import AppContext
from tpuctl.errors import UsageError
from tpuctl.lib.options import Option

INSTALL = "pip install 'tpuctl[ui]'"


def ui(
    context: AppContext,
    port: Annotated[int, Option("Which port of this machine; any free one if left out.", metavar="N")] = 0,
    no_open: Annotated[bool, Option("Open no browser.")] = False,
) -> None:
    """Show slices, runs, costs and capacity in a browser.

    The page is served to this machine alone, keeps itself fresh, and changes nothing: it shows commands to
    copy. The address that is printed opens it once, in one browser. From another machine, forward the port
    with `ssh -L PORT:127.0.0.1:PORT`.
    """
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
            serve(context, gate, listening)


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
