"""How to reach hosts that this machine cannot connect to itself: the words of a proxy command.

The words are never given to a shell. `%h`, `%p`, `%r` and `%n` become the host's address, port, login user and
name, `%i` and `%z` its instance name and zone in Compute Engine, within their words; `%%` is a percent sign, as
in ssh_config(5).
"""

from __future__ import annotations

import re
import shlex
from urllib.parse import urlsplit

from tpuctl.errors import BadConfigError, UsageError
from tpuctl.model.hosts import HostTarget

_JUMP = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][\w.-]*)@)?(?P<host>[A-Za-z0-9][\w.-]*|\[[0-9A-Fa-f:]+\])(?::(?P<port>\d+))?"
)
_ADDRESS = re.compile(r"[0-9A-Za-z][0-9A-Za-z.:-]*")
_INSTANCE = re.compile(r"[a-z](?:[a-z0-9.-]*[a-z0-9])?")
_TOKEN = re.compile(r"%(.?)")
_IAP = ("gcloud", "compute", "start-iap-tunnel", "%i", "%p", "--listen-on-stdin", "--zone=%z")


def check_proxy_command(text: str) -> str:
    """`text` if it can be split into words. Raises UsageError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not a command: {error}", hint="quote it as for a shell") from error
    if not words:
        raise UsageError("the proxy command is empty", hint="for example: nc %h %p")
    for token in _TOKEN.findall(text):
        if token not in tuple("hprniz%"):
            raise UsageError(f"%{token} means nothing in a proxy command", hint="%h %p %r %n %i %z and %%")
    return text


def check_jump_host(text: str) -> str:
    """`text` if it is USER@HOST:PORT, user and port optional. Raises UsageError."""
    if not _JUMP.fullmatch(text):
        raise UsageError(f"{text!r} is not a jump host", hint="write USER@HOST or USER@HOST:PORT")
    return text


def proxy_words(
    proxy_command: str | None, jump_host: str | None, iap_project: str | None = None
) -> tuple[str, ...]:
    """The words of the command that connects its stdin and stdout to a host; empty without any setting.

    A jump host is reached by the user's own `ssh`, with its configuration and known hosts; through IAP hosts of
    `iap_project` by gcloud, as it calls itself for `tpu-vm ssh --tunnel-through-iap`.
    """
    ways = {"proxy_command": proxy_command, "jump_host": jump_host, "iap": iap_project}
    chosen = [name for name, value in ways.items() if value is not None]
    if len(chosen) > 1:
        raise BadConfigError(f"{' and '.join(chosen)} exclude each other", hint="tpuctl config show")
    if iap_project is not None:
        return (*_IAP, f"--project={iap_project}")
    if proxy_command is not None:
        return tuple(shlex.split(proxy_command))
    match = _JUMP.fullmatch(jump_host) if jump_host is not None else None
    if match is None:
        return ()
    user = f"{match['user']}@" if match["user"] else ""
    port = ("-p", match["port"]) if match["port"] else ()
    options = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
    return ("ssh", "-W", "[%h]:%p", *options, *port, "--", f"{user}{match['host'].strip('[]')}")


def render_proxy(words: tuple[str, ...], target: HostTarget) -> list[str]:
    """The argument list for one host. BadConfigError for an address or an instance name that is none."""
    if not _ADDRESS.fullmatch(target.address):
        raise BadConfigError(f"{target.address!r} is not the address of a host")
    instance = target.instance
    if any("i" in _TOKEN.findall(word) for word in words) and not _INSTANCE.fullmatch(instance):
        missing = f"{instance!r} is no instance name" if instance else "its host published no `hostname`"
        why = f"no way to {target.label}: the proxy command has %i, and {missing} as a guest attribute"
        raise BadConfigError(why, hint="jump_host, or proxy_command with %h")
    values = {"h": target.address, "p": str(target.port), "r": target.user, "n": target.label, "%": "%"}
    values |= {"i": instance, "z": target.zone}
    return [_TOKEN.sub(lambda match: values.get(match[1], match[0]), word) for word in words]


def render_proxy_option(words: tuple[str, ...], target: HostTarget) -> str:
    """The same as a value of ssh_config's ProxyCommand, which ssh hands to the user's shell."""
    return shlex.join(render_proxy(words, target)).replace("%", "%%")


def check_ping_url(url: str) -> str:
    """Returns `url`; raises UsageError unless it is https, or http on this machine. It may hold a token."""
    parts = urlsplit(url)
    loopback = parts.hostname in {"localhost", "127.0.0.1", "::1"}
    if parts.hostname is None or not (parts.scheme == "https" or (parts.scheme == "http" and loopback)):
        raise UsageError("the URL to ping must start with https://", hint="ping_url: https://hc-ping.com/UUID")
    if any(not 33 <= ord(character) < 127 for character in url):
        raise UsageError("the URL to ping holds characters that no URL has", hint="percent-encode them")
    return url
