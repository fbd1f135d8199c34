"""Training: tasks, models, how data is split, and training steps. Synchronous, no network.

Import the module you need; `profiles`, `partition`, `sampling`, `adversaries` come without torch:

- `tasks`: named data sets as tensors;
- `models`: networks of images, sequences and tokens, the same at every site;
- `profiles`: a model's parameter shapes alone, for runs that communicate without training, and how
  fast machines compute;
- `partition`: which samples each site holds;
- `sampling`: which of its samples a site draws for each batch; `_resampling`: rare labels more
  often, also as a torch sampler for a user's own loader;
- `adversaries`: sites with wrong labels or contributions, to compare defences;
- `flat`: a model's parameters and gradients as two flat buffers;
- `states`: states and weights on disk;
- `train`: a step's two halves, the gradients of a batch and the update with their mean.
"""
