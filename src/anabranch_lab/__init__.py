"""Questions asked of anabranch before and after a run: scenarios, worlds, tasks and reports.

It stands on `anabranch`, which imports nothing of it. Its libraries are the extra `lab`::

    pip install 'anabranch[lab]'
"""
