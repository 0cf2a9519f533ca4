"""Accelerator, price and error-message tables, each with its sources."""
