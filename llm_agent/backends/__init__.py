"""Backends: what asks a model, behind `ports.Backend`.

The law: a backend's module imports nothing of the loop, and the loop nothing of a backend's.
Public names are imported from their modules, so that whoever brings a backend of their own
loads none of these.
"""
