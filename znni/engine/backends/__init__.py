"""Backends: what differs between devices as they run a plan. A device is a folder."""
