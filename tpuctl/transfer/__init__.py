"""Content on its way to hosts: trees, bundles, copies between hosts."""
