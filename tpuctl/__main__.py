"""`python -m tpuctl`."""

from tpuctl.cli.main import main

main()
