"""Observe, plan, apply: effects in order, through ports only."""
