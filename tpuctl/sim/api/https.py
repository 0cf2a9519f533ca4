"""A proxy that ends TLS for Google's names, so that programs need no endpoint of ours.

A client that honours HTTPS_PROXY asks for `CONNECT tpu.googleapis.com:443`, meets a certificate of this
simulator's own authority and speaks HTTP/1.1 with the REST APIs or, when it offers nothing else, HTTP/2 with
the gRPC API. Nothing for Google's names ever leaves the machine, whatever service it is for. What is for
others is refused, but for the simulated hosts, which need package registries.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import certifi
import trustme

from tpuctl.sim.api.http import HttpServer
from tpuctl.sim.wire.splice import CHUNK, LoopThread, Streams, splice

GOOGLE_SUFFIX = ".googleapis.com"
GOOGLE_NAMES = frozenset({"accounts.google.com"})
"""Where Google's own clients go, besides everything below `GOOGLE_SUFFIX`."""
HEAD_LIMIT_S = 20.0
LOOPBACK = "127.0.0.1"
CA_FILE = "ca.pem"
_SYSTEM_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"


def is_google(host: str) -> bool:
    """Whether a name, with or without a port, is one that the simulated cloud answers for."""
    name = host.lower().partition(":")[0].rstrip(".")
    return name.endswith(GOOGLE_SUFFIX) or name in GOOGLE_NAMES


class HttpsProxy:
    """Proxies in an event loop of their own until `close`.

    `rest` answers behind TLS, `grpc_port` takes HTTP/2, `http_port` is the server without TLS, which clients
    with a proxy for everything reach through it. In `folder`, `ca.pem` holds the simulator's authority behind
    those that this machine trusts: many clients know one file only. Hosts are let through to other servers
    while `to_the_world` says so.
    """

    def __init__(
        self,
        folder: Path,
        rest: HttpServer,
        *,
        http_port: int,
        grpc_port: int,
        to_the_world: Callable[[], bool],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.ca_file = folder / CA_FILE
        self._authority = trustme.CA(organization_name="tpuctl's simulated cloud")
        self.ca_file.write_bytes(_trusted_here() + self._authority.cert_pem.bytes())
        self._rest_port, self._grpc_port, self._http_port = rest.port, grpc_port, http_port
        self._to_the_world = to_the_world
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._loop = LoopThread("sim-https")
        self._servers: list[asyncio.Server] = []
        self._tls_port = self._listen(self._serve_tls, tls=self._context("localhost"))
        self.port = self._listen(lambda reader, writer: self._proxy(reader, writer, for_hosts=False))
        self.host_port = self._listen(lambda reader, writer: self._proxy(reader, writer, for_hosts=True))

    @property
    def endpoint(self) -> str:
        """What HTTPS_PROXY wants."""
        return f"http://{LOOPBACK}:{self.port}"

    def close(self) -> None:
        for server in self._servers:
            self._loop.loop.call_soon_threadsafe(server.close)
        self._loop.close()

    def _listen(self, serve: Streams, tls: ssl.SSLContext | None = None) -> int:
        server = self._loop.call(asyncio.start_server(serve, LOOPBACK, 0, ssl=tls, limit=CHUNK))
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def _context(self, name: str) -> ssl.SSLContext:
        """TLS as the server of this name; made when the first client asks for it."""
        if name not in self._contexts:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._authority.issue_cert(name).configure_cert(context)
            # Clients that know both, such as Go's and Rust's, speak HTTP/1.1; gRPC offers HTTP/2 only.
            context.set_alpn_protocols(["http/1.1", "h2"])
            context.sni_callback = self._choose
            self._contexts[name] = context
        return self._contexts[name]

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        if name is None or not is_google(name):
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        connection.context = self._context(name.lower())
        return None

    async def _serve_tls(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        protocol = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        await splice(reader, writer, LOOPBACK, self._grpc_port if protocol == "h2" else self._rest_port)

    async def _proxy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, for_hosts: bool
    ) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_LIMIT_S)
            method, target, _ = head.decode("latin-1").split("\r\n", 1)[0].split(" ")
        except (
            TimeoutError,
            ValueError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            ConnectionError,
        ):
            writer.close()
            return
        host, _, port = target.rpartition(":")
        if method != "CONNECT" and target.startswith(f"http://{LOOPBACK}:{self._http_port}/"):
            await splice(reader, writer, LOOPBACK, self._http_port, request=head)
        elif method == "CONNECT" and is_google(host):
            await splice(reader, writer, LOOPBACK, self._tls_port, greeting=ESTABLISHED)
        elif method == "CONNECT" and for_hosts and self._to_the_world() and port.isdecimal():
            await _pass_on(reader, writer, host, int(port), head)
        else:
            await _refuse(writer, target)


ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


async def _refuse(writer: asyncio.StreamWriter, target: str) -> None:
    text = f"tpuctl's simulated cloud answers for Google's APIs only, not for {target}\n".encode()
    head = f"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
    try:
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + text)
        await writer.drain()
    except ConnectionError:
        return
    finally:
        writer.close()


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int, head: bytes
) -> None:
    """To the world, by this machine's own proxy where it has one for that."""
    proxy = urllib.request.getproxies().get("https", "")
    if proxy and not urllib.request.proxy_bypass(host):
        there = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        await splice(reader, writer, there.hostname or "", there.port or 80, request=head)
    else:
        await splice(reader, writer, host, port, greeting=ESTABLISHED)


def _trusted_here() -> bytes:
    """The authorities that this machine trusts; empty where no file holds them."""
    paths = ssl.get_default_verify_paths()
    for name in (os.environ.get("SSL_CERT_FILE"), paths.cafile, _SYSTEM_BUNDLE, certifi.where()):
        if name and Path(name).is_file():
            return Path(name).read_bytes().rstrip() + b"\n"
    return b""
