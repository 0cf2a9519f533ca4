"""Commands on workers by hand: exec, cp, forward."""
