"""Buckets as folders of hosts: what is asked, how gcsfuse is told, and what another host sees."""
