"""Command line: parse, call one workflow, render."""
