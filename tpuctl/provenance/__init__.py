"""Records of what ran."""
