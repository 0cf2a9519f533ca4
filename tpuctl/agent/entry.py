"""Where every start begins. A verb's module is imported when it is asked for: this program starts on all hosts
at once, and what a host imports is most of what a short command costs there."""

import sys

NOT_INSTALLED = 97
NOT_INSTALLED_LINE = "tpuctl: no agent here\n"


def main(arguments):
    verb = arguments[0] if arguments else ""
    try:
        run = load(verb)
    except Exception as error:
        return do_not_start(error)
    return run(arguments)


def do_not_start(error):
    """A folder that the disk damaged: nothing was done yet, and to install it again mends it."""
    sys.stderr.write("tpuctl: the agent does not start: %r\n%s" % (error, NOT_INSTALLED_LINE))
    return NOT_INSTALLED


def load(verb):
    """What does a verb, all its modules imported."""
    if verb == "session":
        from session import session

        return lambda _: session()
    if verb == "serve":
        from serve import serve

        return lambda _: serve()
    if verb == "feed":
        from feed import feed

        return lambda _: feed()
    if verb == "carry":
        from copies import carry

        return lambda arguments: carry(arguments[1])
    from verbs import MODULES, answer_verb, find_verb

    for each in verb.split("+"):
        if each in MODULES:
            find_verb(each)
    return lambda _: answer_verb(verb)
