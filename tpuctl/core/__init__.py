"""Pure decisions on plain data: no I/O, clock, randomness, logging or globals."""
