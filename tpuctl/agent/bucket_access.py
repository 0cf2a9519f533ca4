"""`bucket_access`: what this host's own account may do with buckets.

Programs on a host use its service account, of which nobody but the host can ask. Each permission that the
bucket does not grant as a whole is tried, because a role may hold for a folder only; what stays unclear is not
told.
"""

import os
import time

import quick_json as json
from base import suppress
from metadata import value

GOOGLE_STORAGE = "https://storage.googleapis.com"
CREATE, DELETE = "storage.objects.create", "storage.objects.delete"
"""Nobody needs the second one: buckets that keep all that is written are for checkpoints, too."""
READ = ("storage.objects.get", "storage.objects.list")
PROBE = ".tpuctl-access"
"""The name of what is written to try, always the same: what could not be deleted is one object."""
ANSWER_S = 5.0
DELETE_S = 2.0


def bucket_access(request, _stdin):
    deadline = time.monotonic() + request["seconds"]
    account, token = value("service-accounts/default/email"), value("service-accounts/default/token")
    if not account or not token:
        return {}
    caller = Caller(json.loads(token)["access_token"], deadline)
    found = []
    for each in request["buckets"]:
        with suppress(Unclear):
            found.append(judge(caller, each))
    return {"account": account, "buckets": found}


class Unclear(Exception):
    """The answer says nothing of permissions, or there was none in time."""


class Caller:
    """Asks Cloud Storage with the token of the host."""

    def __init__(self, token, deadline):
        self.headers = {"Authorization": "Bearer " + token}
        self.base = (os.environ.get("STORAGE_EMULATOR_HOST") or GOOGLE_STORAGE).rstrip("/")
        self.deadline = deadline

    def ask(self, method, path, body=None, least_s=0.0):
        """(status, answer). Raises Unclear. It has `least_s` also where the time is up."""
        import urllib.error
        import urllib.request  # takes a tenth of a second, and only one host needs it

        left = max(least_s, self.deadline - time.monotonic())
        if left <= 0:
            raise Unclear
        call = urllib.request.Request(self.base + path, data=body, headers=self.headers, method=method)
        try:
            with urllib.request.urlopen(call, timeout=min(left, ANSWER_S)) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            if error.code in (403, 404, 412):
                return error.code, error.read().decode(errors="replace")
            raise Unclear from error
        except (OSError, ValueError) as error:
            raise Unclear from error


def judge(caller, wanted):
    """`wanted` has `bucket`, the `prefix` of what is written or read, and whether that is to `write`."""
    bucket, prefix = quoted(wanted["bucket"]), wanted["prefix"]
    asked = (CREATE, *READ) if wanted["write"] else READ
    query = "&".join("permissions=" + each for each in asked)
    status, answer = caller.ask("GET", "/storage/v1/b/%s/iam/testPermissions?%s" % (bucket, query))
    if status == 404:
        return {"bucket": wanted["bucket"], "absent": True}
    granted = json.loads(answer).get("permissions", []) if status == 200 else []
    lacking = [each for each in asked if each not in granted]
    if lacking and wanted["write"]:
        lacking = writing_lacks(caller, bucket, prefix, lacking)
    elif lacking:
        lacking = lacking if refused(caller, "GET", listing(bucket, prefix)) else []
    return {"bucket": wanted["bucket"], "lacks": lacking}


def writing_lacks(caller, bucket, prefix, lacking):
    """Those that a probe object is refused for; it is removed again, also where there was no answer."""
    name = quoted(prefix + PROBE)
    upload = "/upload/storage/v1/b/%s/o?uploadType=media&ifGenerationMatch=0&name=%s" % (bucket, name)
    probe = "/storage/v1/b/%s/o/%s" % (bucket, name)
    try:
        status, said = caller.ask("POST", upload, b"")
        if status == 403 and DELETE not in said:  # else it is there, and what is there must not be replaced
            return list(dict.fromkeys([CREATE, *lacking]))
        tries = ((READ[0], probe), (READ[1], listing(bucket, prefix)))
        return [each for each, path in tries if each in lacking and refused(caller, "GET", path)]
    finally:
        with suppress(Unclear):
            caller.ask("DELETE", probe, least_s=DELETE_S)


def listing(bucket, prefix):
    return "/storage/v1/b/%s/o?maxResults=1&prefix=%s" % (bucket, quoted(prefix))


def refused(caller, method, path):
    return caller.ask(method, path)[0] == 403


def quoted(text):
    from urllib.parse import quote

    return quote(text, safe="")
