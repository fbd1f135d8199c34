"""What a site learns between exchanges: local steps, averages and optimisers. No network here.

Import the module you need; all but `buffers` come without torch:

- `averaging`, `local_steps`: models that make local steps of their own between averages;
- `said`: what sites say of themselves beside an average;
- `optimisers`: updates that give the same bits on every machine;
- `buffers`: what of a model's state is no parameter, and how sites' values of it are mixed;
- `checksum`: tells whether two buffers are the same, bit for bit;
- `handed_state`: the state of training, as a newcomer gets it; `sharded`: refuses what is in parts;
- `work`: what every task does in a run, one of your own too.
"""
