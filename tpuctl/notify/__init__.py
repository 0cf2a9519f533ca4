"""Events, and hooks and pings that tell of them."""
