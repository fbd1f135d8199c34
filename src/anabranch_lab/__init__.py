"""The lab around anabranch, for before and after a run: scenarios, worlds, tasks and reports.

It imports `anabranch`, which imports nothing of it. The extra `lab` installs its libraries::

    pip install 'anabranch[lab]'
"""
