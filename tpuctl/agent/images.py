"""The operation `pull_image`: brings a container image onto this host.

Registries of Google are asked with a token of this host's service account, which lies in a file in memory
while it pulls; others with what `docker login` or `podman login` left here.
"""

import os
import re

import engines
import quick_json as json
import secret_files
from metadata import value
from operations import Failed
from processes import process_stat
from survivors import mark_of

PULL_S = 3000  # of the hour that a job has
GOOGLES = re.compile(r"(?:[a-z]+\.)?gcr\.io|[a-z0-9-]+-docker\.pkg\.dev")
"""Container Registry and Artifact Registry (Artifact Registry, "Set up authentication for Docker")."""
CONFIG = "config.json"  # as docker names it
USER = "oauth2accesstoken"
FULL = "its disk is full"
SAID_MAX = 400
LOGIN = "log in on each host"
REFUSALS = (
    (r"no space left on device|not enough space", FULL, "make room there"),
    (
        r"no matching manifest|no image found in (image index|manifest list)|does not match .* platform",
        "it has none for this host's architecture",
        "build it for this architecture, such as with docker buildx build --platform linux/amd64",
    ),
    (
        r"manifest unknown|name unknown|"
        r"\b(manifest|repository|image|reference)\b.*(?<!executable file )(not found|does not exist)",
        "there is no such image",
        "look at its name and tag",
    ),
    (r"denied|unauthorized|forbidden|\b(401|403)\b|authentication required", "the registry refuses it", LOGIN),
    (
        r"short-name|must be fully qualified",
        "its registry is not named",
        "name it whole: docker.io/library/NAME:TAG",
    ),
)
"""What engines and registries say, what it means, and what to do about it. Trying again is in vain."""


def pull_image(parameters, job):
    """`image` with a digest, or a tag; `asked_by` is in the result."""
    image = parameters["image"]
    engine, why = engines.find()
    if engine is None:
        raise Failed(why or "neither docker nor podman is installed", permanent=True)
    mark = mark_of({"pid": os.getpid(), "start_time": process_stat(os.getpid())[2]})
    try:
        job.run([*engine.words, *login(engine, image.partition("/")[0], mark), image], seconds=PULL_S)
    except Failed as error:
        raise explained(error, engine, image) from error
    finally:
        secret_files.remove(mark)
    return {"pulled": image, "asked_by": parameters.get("asked_by", "")}


def login(engine, registry, mark):
    """The arguments before the image: with a token of this host where the registry is one of Google's, in a
    folder in memory that has the mark of this process."""
    token = value("service-accounts/default/token") if GOOGLES.fullmatch(registry) else None
    if not token:
        return ["pull"]
    written = json.dumps(auths(registry, json.loads(token)["access_token"]))
    folder = secret_files.write(mark, {CONFIG: written})
    if folder is None:
        raise Failed(
            "no file system in memory takes the token of this host's account", on_host="df -h /dev/shm"
        )
    if engine.name == "docker":
        return ["--config", folder, "pull"]
    return ["pull", "--authfile", os.path.join(folder, CONFIG)]


def auths(registry, token):
    """As both engines read it."""
    import base64

    return {"auths": {registry: {"auth": base64.b64encode(("%s:%s" % (USER, token)).encode()).decode()}}}


def explained(error, engine, image):
    """A failure with what it means, as far as that is known."""
    said, registry = str(error), image.partition("/")[0]
    words = re.sub(r"sha256:\w+", "", said)
    for pattern, meaning, hint in REFUSALS:
        if not re.search(pattern, words, re.IGNORECASE):
            continue
        on_host = "df -h %s" % engine.storage if meaning == FULL else ""
        if hint == LOGIN:
            hint, on_host = (
                (reader_role(image), "")
                if GOOGLES.fullmatch(registry)
                else (LOGIN, " ".join([*engine.words, "login", registry]))
            )
        return Failed("%s (%s)" % (meaning, said[:SAID_MAX]), permanent=True, hint=hint, on_host=on_host)
    return error


def reader_role(image):
    """The command that lets this host's account read an image of Artifact Registry or Container Registry."""
    account = value("service-accounts/default/email") or "ACCOUNT_OF_THE_HOSTS"
    member = "--member=serviceAccount:%s --role=roles/artifactregistry.reader" % account
    registry, _, rest = image.partition("/")
    parts = rest.split("/")
    if not registry.endswith("-docker.pkg.dev") or len(parts) < 3:
        return "gcloud projects add-iam-policy-binding %s %s" % (parts[0], member)
    where = "--project=%s --location=%s" % (parts[0], registry[: -len("-docker.pkg.dev")])
    return "gcloud artifacts repositories add-iam-policy-binding %s %s %s" % (parts[1], where, member)
