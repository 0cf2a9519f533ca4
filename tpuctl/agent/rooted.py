"""Other programs of the host, those that need root through sudo, where that asks nothing."""

import os

COMMAND_S = 5.0


def how_root():
    """`root`, `sudo`, or nothing."""
    if os.geteuid() == 0:
        return "root"
    return "sudo" if output_of(["sudo", "-n", "true"]) is not None else ""


def as_root(argv):
    return list(argv) if os.geteuid() == 0 else ["sudo", "-n", *argv]


def output_of(argv, any_status=False, seconds=COMMAND_S):
    """What a program says; None where it is missing, fails or takes too long."""
    import subprocess  # takes longer than most of what is asked of a host

    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if any_status or done.returncode == 0 else None
