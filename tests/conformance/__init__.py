"""Other people's clients, unchanged, against the simulated cloud.

Each module `clients_*.py` here has `CLIENTS: list[Client]` (see `tests.conformance.client`); whoever makes the
conformance table collects them.
"""
