"""Hosts, switches and links.  Empty until the topology model arrives; schedules are flat."""
