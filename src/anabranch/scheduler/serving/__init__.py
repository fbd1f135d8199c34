"""The books of a served model's workers, groups and updates, one idea a file. Pure.

:mod:`anabranch.scheduler.pacing` puts them together, and tells the way of an update.
"""
