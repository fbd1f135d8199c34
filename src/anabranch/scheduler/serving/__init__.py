"""The books of a served model's workers, groups and updates, one idea a file. Pure.

:mod:`anabranch.scheduler.pacing` puts them together, and describes the path of an update.
"""
