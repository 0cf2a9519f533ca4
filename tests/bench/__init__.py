"""Measurements: tpuctl beside the tools that people use today, in one go, on one machine.

`python -m tests.bench [--quick] [NAME…]`. Never part of the test run; what counts are ratios of medians.
"""
