"""Where every start begins. A verb's module is imported when it is asked for: this program starts on all hosts
at once, and what a host imports is most of what a short command costs there."""


def main(arguments):
    verb = arguments[0] if arguments else ""
    if verb == "leash":
        from leash import leash

        return leash()
    if verb == "install":
        from install import install

        return install(arguments[1])
    if verb == "carry":
        from copies import carry

        return carry(arguments[1])
    from verbs import answer_verb

    return answer_verb(verb)
