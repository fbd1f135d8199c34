"""A site's training between exchanges: local steps, averages and optimisers. No network here.

Import the module you need; none imports torch with it:

- `averaging`, `local_steps`: models that make local steps between averages;
- `trailer`: numbers of a site that travel with an average;
- `optimisers`: updates that give the same bits on every machine; `schedules`: their learning rates;
- `buffers`: the parts of a model's state that are not parameters, and the mean of sites' values;
- `checksum`: tells whether two buffers are the same, bit for bit;
- `handed_state`: the state of training, as a newcomer gets it; `sharded`: refuses sharded tensors;
- `work`: the protocol of every task in a run, also of a user's own task.
"""
