"""Grants, quotas and costs."""
