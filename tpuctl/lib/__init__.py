"""Text, time, names, files and processes: nothing here knows about TPUs."""
