"""What the domains share, as plain data: records, resources, accelerator types, limits."""
