"""Adapters of Google's APIs."""
