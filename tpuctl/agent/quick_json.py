"""`loads` and `dumps` of json, without what that package imports: regular expressions and enumerations take as
long as all else that a short verb does. The C functions behind both are private, so where they are not as they
have been since Python 3.8, json itself does it."""

try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    class Rules:
        strict = True
        object_hook = object_pairs_hook = array_hook = None
        parse_float = float
        parse_int = int

        @staticmethod
        def parse_constant(name):
            return float(name.replace("Infinity", "inf"))

    def refuse(value):
        raise TypeError("%s is no JSON" % type(value).__name__)

    scan = make_scanner(Rules)  # type: ignore[arg-type]
    SPACE = " \t\n\r"

    def loads(text):
        """ValueError for what is no JSON."""
        text = text.strip(SPACE)
        try:
            value, end = scan(text, 0)
        except StopIteration:
            end = -1
        if end != len(text):
            raise ValueError("no JSON: %r" % text[:40])
        return value

    def dumps(value):
        encode = make_encoder({}, refuse, encode_basestring_ascii, None, ": ", ", ", False, False, True)
        return "".join(encode(value, 0))

    if loads(dumps([{"a": 1.5}, None, "\u00e9"])) != [{"a": 1.5}, None, "\u00e9"]:
        raise ImportError("another _json")
except (ImportError, TypeError, AttributeError):
    from json import dumps, loads  # type: ignore[assignment]
