"""The mask for new files: what this program makes is private, commands of the user get their own mask back."""

import os

USER_UMASK = os.umask(0o077)
