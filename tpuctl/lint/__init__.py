"""What TPUs punish in a program, found in its code without running it."""
