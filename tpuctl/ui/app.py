"""The routes of the page: each looks at the store by the views and renders a template. None changes a thing."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup
from msgspec import structs
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tpuctl import __version__
from tpuctl.engine.services import Services
from tpuctl.errors import NotFoundError, TpuctlError, UsageError
from tpuctl.model.shipped_files import read_template
from tpuctl.slices.capacity_notes import list_notes
from tpuctl.state.repository import readable_runs
from tpuctl.ui.access import HEADERS, Gate, PageRequest, find_user
from tpuctl.ui.live import as_event, changes
from tpuctl.ui.log_parts import filters_of, find_in_log, list_logs, read_part
from tpuctl.ui.look import (
    CloudLook,
    RunsAsked,
    look_at_comparison,
    look_at_fleet,
    look_at_money,
    look_at_run,
    look_at_runs,
    look_at_slice,
)
from tpuctl.views.plot import render_capacity
from tpuctl.views.report import templates

Facts = Mapping[str, Any]
PICTURE = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
"""A picture of ours has its style in itself."""
ENTRANCE = '<!doctype html><title>tpuctl</title><meta http-equiv="refresh" content="0; url=/">'
"""Goes on by itself: after a redirect of a link from elsewhere browsers keep back a cookie that is `Strict`."""

COMMON = ("ui_base.html.j2", "ui_parts.html.j2", "ui_error.html.j2", "report_body.html.j2")
"""Templates that others use. All are compiled before the first page is asked for."""


class Pages:
    """The pages over one store. `stopped` ends what is kept open."""

    def __init__(self, services: Services, stopped: threading.Event) -> None:
        self._services, self._stopped = services, stopped
        self._cloud = CloudLook(services)
        self._turn, self._slow_turn = threading.Lock(), threading.Lock()
        self._templates = templates(address=_address, live=True)
        self.looks: Mapping[str, tuple[str, str, Callable[[Request], Facts]]] = {
            "/": ("Fleet", "ui_fleet.html.j2", lambda _: look_at_fleet(services, *self._cloud.latest())),
            "/slices/{name}": ("Fleet", "ui_slice.html.j2", self._slice),
            "/runs": ("Runs", "ui_runs.html.j2", self._runs),
            "/runs/{name}": ("Runs", "ui_run.html.j2", self._run),
            "/runs/{name}/log": ("Runs", "ui_log.html.j2", self._logs),
            "/compare": ("Runs", "ui_compare.html.j2", self._comparison),
            "/money": ("Money and capacity", "ui_money.html.j2", lambda _: self._money()),
        }
        """By path: the section that is marked in the menu, the template, and what it is given."""
        for name in (*COMMON, *(template for _, template, _ in self.looks.values())):
            self._templates.get_template(name)

    def page(self, request: Request, path: str) -> Response:
        """The whole page, which then keeps itself fresh."""
        section, template, _ = self.looks[path]
        facts, status = self._look(request, path)
        live = "" if path in ("/runs/{name}/log", "/compare") else f"/live{request.url.path}"
        live += f"?{request.url.query}" if live and request.url.query else ""
        html = self._templates.get_template("ui_base.html.j2").render(
            title=facts["title"],
            section=section,
            template=template if status == 200 else "ui_error.html.j2",
            facts=facts,
            live=live,
            version=__version__,
            project=self._services.project,
        )
        return Response(html, status, media_type="text/html")

    def updates(self, request: Request, path: str) -> Response:
        """The content of a page, whenever it is another."""

        def render() -> str:
            facts, status = self._look(request, path)
            name = self.looks[path][1] if status == 200 else "ui_error.html.j2"
            return self._templates.get_template(name).render(facts=facts)

        async def events() -> AsyncIterator[str]:
            yield "retry: 2000\n\n"
            async for text in changes(render, self._stopped):
                yield as_event(text)

        return StreamingResponse(events(), media_type="text/event-stream")

    def _look(self, request: Request, path: str) -> tuple[Facts, int]:
        """What a page is given, and its status; of what cannot be shown why that is so. One page is looked at
        after the other, for services are made for one command; but pages that ask the cloud and hosts keep no
        other waiting."""
        try:
            with self._slow_turn if path == "/slices/{name}" else self._turn:
                return self.looks[path][2](request), 200
        except TpuctlError as error:
            facts = {"title": "This cannot be shown", "said": error.message, "hint": error.hint or ""}
            return facts, _status(error)

    def _slice(self, request: Request) -> Facts:
        return look_at_slice(self._services, request.path_params["name"])

    def _runs(self, request: Request) -> Facts:
        query = request.query_params
        words = {name: query.get(name, "") for name in RunsAsked.__struct_fields__ if name != "page"}
        page = query.get("page", "1")
        asked = RunsAsked(**words, page=int(page) if page.isascii() and page.isdigit() and len(page) < 9 else 1)

        def link(number: int) -> str:
            return f"/runs?{urlencode({**structs.asdict(asked), 'page': number})}"

        return {**look_at_runs(self._services, readable_runs(self._services)[0], asked), "link": link}

    def _run(self, request: Request) -> Facts:
        facts = look_at_run(self._services, request.path_params["name"])
        body = self._templates.get_template("report_body.html.j2").render(facts)
        return {**facts, "body": Markup(body)}  # noqa: S704 (rendered and escaped above)

    def _logs(self, request: Request) -> Facts:
        run = request.path_params["name"]
        logs = list_logs(self._services, run)
        return {"title": f"Log of {run}", "run": run, "logs": logs, "filters": filters_of(logs)}

    def _comparison(self, request: Request) -> Facts:
        return look_at_comparison(self._services, request.query_params.getlist("run"))

    def _money(self) -> Facts:
        runs = readable_runs(self._services)[0]
        return {**look_at_money(self._services, runs), "picture": "/capacity.svg"}

    def part(self, request: Request) -> Response:
        """A piece of a log."""
        query = request.query_params
        with self._turn:
            found = read_part(
                self._services,
                request.path_params["name"],
                query.get("log", ""),
                _number(query.get("offset")),
                _number(query.get("limit")),
            )
        return JSONResponse(structs.asdict(found))

    def find(self, request: Request) -> Response:
        """Where a text stands in a log, from an offset on."""
        query = request.query_params
        run, log = request.path_params["name"], query.get("log", "")
        hit = find_in_log(self._services, run, log, query.get("text", ""), _number(query.get("offset")))
        return JSONResponse(structs.asdict(hit))

    def capacity(self, _request: Request) -> Response:
        """The picture of `tpuctl capacity --plot`."""
        with self._turn:
            notes, now = list_notes(self._services), self._services.store.now()
        if not notes:
            raise HTTPException(404)
        return Response(render_capacity(notes, now), media_type="image/svg+xml", headers=PICTURE)


def _address(kind: str, name: str) -> str:
    """Where the page of a slice or run is, or the log of a run."""
    return {"slice": "/slices/{}", "run": "/runs/{}", "log": "/runs/{}/log"}[kind].format(quote(name, safe=""))


def _status(error: Exception) -> int:
    return 404 if isinstance(error, NotFoundError) else 400 if isinstance(error, UsageError) else 503


def _number(word: str | None) -> int:
    if word is None or not (word.isascii() and word.isdigit() and len(word) < 17):
        raise HTTPException(400, "a number of bytes is missing")
    return int(word)


def make_app(services: Services, gate: Gate, stopped: threading.Event) -> ASGIApp:
    """The page as an application; only `gate` lets anybody in."""
    pages = Pages(services, stopped)

    def bound(path: str, act: Callable[[Request, str], Response]) -> Callable[[Request], Response]:
        return lambda request: act(request, path)

    def shipped(name: str, kind: str) -> Callable[[Request], Response]:
        return lambda _: Response(b"\n".join(map(read_template, name.split())), media_type=kind)

    routes = [
        Route("/ui.css", shipped("report.css ui.css", "text/css")),
        Route("/ui.js", shipped("ui.js", "text/javascript")),
        Route("/capacity.svg", pages.capacity),
        Route("/runs/{name}/log/part", pages.part),
        Route("/runs/{name}/log/find", pages.find),
        *(Route(f"/live{path}", bound(path, pages.updates)) for path in pages.looks),
        *(Route(path, bound(path, pages.page)) for path in pages.looks),
    ]
    return Guarded(Starlette(routes=routes, exception_handlers={TpuctlError: _refused}), gate)


async def _refused(_request: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), _status(error))


class Guarded:
    """Asks the gate about each request before anything else sees it, and gives each answer its headers."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app, self._gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request, gate = Request(scope), self._gate
        answer = gate.judge(
            PageRequest(
                request.method,
                request.url.path,
                ", ".join(request.headers.getlist("host")),
                request.headers.get("origin"),
                request.query_params.get("token"),
                request.cookies.get(gate.cookie_name),
                _user_of(request, gate.port),
            )
        )
        app: ASGIApp = self._app
        if answer.enters:
            entrance = HTMLResponse(ENTRANCE)
            entrance.set_cookie(gate.cookie_name, gate.cookie, httponly=True, samesite="strict", path="/")
            app = entrance
        elif answer.status != 200:
            app = PlainTextResponse(answer.said + "\n", answer.status)
        await app(scope, receive, _with_headers(send))


def _user_of(request: Request, port: int) -> int | None:
    tables = [table.read_text() for table in map(Path, ("/proc/net/tcp", "/proc/net/tcp6")) if table.exists()]
    return None if request.client is None else find_user(request.client.port, port, tables)


def _with_headers(send: Send) -> Callable[[Any], Awaitable[None]]:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message["headers"]}
            message["headers"] = [
                *message["headers"],
                *(
                    (name.lower().encode(), value.encode())
                    for name, value in HEADERS.items()
                    if name.lower().encode() not in given
                ),
            ]
        await send(message)

    return sending
