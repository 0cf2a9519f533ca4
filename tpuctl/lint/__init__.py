"""`tpuctl lint`: what a program does that TPUs punish, found without running it."""
