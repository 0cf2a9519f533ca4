"""What calls passes on this machine, cron or a user timer of systemd: written, found again and removed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from tpuctl.config.load import find_state_base
from tpuctl.config.settings import Config
from tpuctl.errors import ConflictError, TpuctlError
from tpuctl.lib.files import wait_lock, write_private
from tpuctl.lib.programs import call, said
from tpuctl.model.facts import WatchFacts
from tpuctl.model.shipped_files import read_template
from tpuctl.watch.install.crontab import drop_line, find_lines, put_line, render_line
from tpuctl.watch.install.preflight import cron_runs
from tpuctl.watch.install.script import pick_environment, render_script, render_unit, unit_name

_SUFFIXES = ("service", "timer")
TRIES = 3


class Cron(Struct, frozen=True):
    """A line in the crontab of this user; `line` may be empty where it is only looked for or removed."""

    state_dir: Path
    line: str = ""
    kind: str = "cron"

    def texts(self) -> dict[str, str]:
        return {"crontab line:": self.line}

    def check(self) -> None:
        """Reading the crontab says why it cannot be."""

    def found(self) -> list[str]:
        return [] if shutil.which("crontab") is None else find_lines(read_crontab(), str(self.state_dir))

    def is_installed(self) -> bool:
        return self.line in self.found()

    def install(self) -> bool:
        return edit_crontab(lambda text: put_line(text, self.line, str(self.state_dir)), _crontab_lock())

    def remove(self) -> None:
        if self.found():
            edit_crontab(lambda text: drop_line(text, str(self.state_dir)), _crontab_lock())


class UserTimer(Struct, frozen=True):
    """A timer of systemd for this user; `units` may be empty where it is only looked for or removed."""

    folder: Path
    name: str
    units: dict[str, str] = {}
    kind: str = "systemd"

    def _files(self) -> dict[Path, str]:
        return {self.folder / f"{self.name}.{suffix}": self.units.get(suffix, "") for suffix in _SUFFIXES}

    def texts(self) -> dict[str, str]:
        return {f"{path}:": text for path, text in self._files().items()}

    def check(self) -> None:
        done = call(["systemctl", "--user", "show-environment"])
        if done.returncode != 0:
            what = f"systemd does not serve this user: {said(done)}"
            raise TpuctlError(what, hint="tpuctl watch install, without --systemd")

    def found(self) -> list[str]:
        timer = self.folder / f"{self.name}.timer"
        return [str(timer)] if timer.exists() else []

    def is_installed(self) -> bool:
        return bool(self.found())

    def install(self) -> bool:
        timer = f"{self.name}.timer"
        same = all(path.is_file() and path.read_text() == text for path, text in self._files().items())
        if same and call(["systemctl", "--user", "is-active", timer]).returncode == 0:
            return False
        for path, text in self._files().items():
            write_private(path, text.encode(), mode=0o644)
        _systemctl("daemon-reload")
        _systemctl("enable", timer)
        _systemctl("restart", timer)
        return True

    def remove(self) -> None:
        if not any(path.exists() for path in self._files()):
            return
        _systemctl("disable", "--now", f"{self.name}.timer")
        for path in self._files():
            path.unlink(missing_ok=True)
        _systemctl("daemon-reload")


Installer = Cron | UserTimer
"""One way to have the script of a pass called every few minutes. `texts` is what it writes, by where it goes;
`found` what of it is installed here, and `is_installed` whether that is exactly what it writes; `install` says
whether anything changed."""


class Installation(Struct, frozen=True):
    """The script of a pass, and what calls it in place of every other."""

    script: str
    path: Path
    by: Installer
    others: tuple[Installer, ...]

    def texts(self) -> dict[str, str]:
        """All that is written, by where it goes."""
        return {**self.by.texts(), f"{self.path}:": self.script}

    def is_installed(self) -> bool:
        return self._same_script() and self.by.is_installed()

    def install(self) -> bool:
        """The script first: nothing may call what is not there. False when all is so already."""
        self.by.check()
        changed = not self._same_script()
        if changed:
            write_private(self.path, self.script.encode())
        changed |= self.by.install()
        for other in self.others:
            other.remove()
        return changed

    def _same_script(self) -> bool:
        return self.path.is_file() and self.path.read_text() == self.script


def plan_install(config: Config, every_min: int, *, systemd: bool, given: Mapping[str, str]) -> Installation:
    """What `watch install` would write; passes have the variables `given`. Raises UsageError for what a script,
    crontab or unit cannot hold."""
    environ = {**pick_environment(os.environ, config, str(Path.cwd())), **given}
    subject = f"profile {config.profile}, project {config.require_project()}"
    script = render_script(
        read_template("watch_pass.sh").decode(),
        subject=subject,
        environ=environ,
        program=[sys.executable, "-P", "-m", "tpuctl", "watch", "once", "--every", str(every_min)],
        timeout=shutil.which("timeout"),
    )
    path = _script_path(config)
    cron, timer = installers(config)
    if not systemd:
        flock = shutil.which("flock")
        guard = (flock, "-n", "-o", str(path.parent / "cron.lock")) if flock else ()
        line = render_line(every_min, (*guard, "/bin/sh", str(path)), str(config.state_dir))
        return Installation(script, path, Cron(cron.state_dir, line), (timer,))
    units = {
        suffix: render_unit(
            read_template(f"tpuctl-watch.{suffix}").decode(),
            subject=subject,
            script=str(path),
            every_min=every_min,
        )
        for suffix in _SUFFIXES
    }
    return Installation(script, path, UserTimer(timer.folder, timer.name, units), (cron,))


def installers(config: Config) -> tuple[Cron, UserTimer]:
    """All that may be installed for this profile and project, to find and to remove it."""
    name = unit_name(config.profile, config.require_project())
    base = os.environ.get("XDG_CONFIG_HOME", "")
    units = (Path(base) if base.startswith("/") else Path.home() / ".config") / "systemd" / "user"
    return Cron(config.state_dir), UserTimer(units, name)


def uninstall(config: Config) -> None:
    """Removes what `watch install` wrote, and nothing else."""
    for each in installers(config):
        each.remove()
    _script_path(config).unlink(missing_ok=True)


def installed_watch(config: Config) -> WatchFacts:
    """What `watch install` left on this machine."""
    cron, timer = installers(config)
    return WatchFacts(
        installed=_script_path(config).is_file(),
        in_crontab=bool(cron.found()),
        timer=bool(timer.found()),
        cron_runs=cron_runs(),
    )


def installed_at(config: Config) -> float | None:
    """When the watchdog of this machine was installed (epoch seconds); None where none is."""
    try:
        return _script_path(config).stat().st_mtime
    except OSError:
        return None


def _script_path(config: Config) -> Path:
    return config.state_dir / "watch" / "pass.sh"


def _crontab_lock() -> Path:
    """One for all profiles, projects and state directories of this user, as there is one crontab."""
    return find_state_base({}, Path.home()) / "crontab.lock"


def read_crontab() -> str:
    """The whole crontab; empty when there is none. Bytes that are no UTF-8 survive a round trip."""
    done = call(["crontab", "-l"])
    if done.returncode == 0:
        return done.stdout.decode("utf-8", "surrogateescape")
    if b"no crontab for" in done.stderr:
        return ""
    raise TpuctlError(
        f"the crontab cannot be read: {said(done)}", hint="tpuctl watch install --systemd needs no crontab"
    )


def edit_crontab(edit: Callable[[str], str], lock: Path) -> bool:
    """Replaces the crontab by `edit` of it; False when that changes nothing.

    `lock` is the same file for all tpuctl of this user. Another program that writes in between is noticed:
    what it wrote is edited again. crontab(1) replaces the file in one step.
    """
    with wait_lock(lock):
        for _ in range(TRIES):
            before = read_crontab()
            after = edit(before)
            if after == before:
                return False
            done = call(["crontab", "-"], after.encode("utf-8", "surrogateescape"))
            if done.returncode != 0:
                raise TpuctlError(f"crontab refused the new table: {said(done)}", hint="crontab -l")
            if read_crontab() == after:
                return True
    raise ConflictError("something else keeps writing the crontab", hint="crontab -l, then try again")


def _systemctl(*words: str) -> None:
    done = call(["systemctl", "--user", *words])
    if done.returncode != 0:
        raise TpuctlError(f"systemctl --user {' '.join(words)}: {said(done)}", hint="systemctl --user status")
