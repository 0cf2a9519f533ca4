"""What hosts are asked to have, and the one driver that brings them to it."""
