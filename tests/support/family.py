"""A program that leaves processes behind in every way there is."""

from __future__ import annotations

FAMILY = """
import os, signal, subprocess, sys, time
def settle(name):
    open(name, "w").close()
    time.sleep(300)
def child(name, body):
    if os.fork() == 0:
        body(name)
        os._exit(0)
def grandparent(name):
    child("grandchild", settle)
    settle(name)
def nohup(name):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    settle(name)
def setsid(name):
    os.setsid()
    settle(name)
def daemon(name):
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir(HERE)
    settle(name)
def deaf(name):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    settle(name)
HERE = os.getcwd()
child("child", grandparent)
for body in (nohup, setsid, daemon, deaf):
    child(body.__name__, body)
settle("main")
"""
MEMBERS = {"main", "child", "grandchild", "nohup", "setsid", "daemon", "deaf"}
"""One for each way: it makes an empty file of its name once it is settled."""
