"""One thread, for speed on small tensors and the same bits everywhere."""

import torch

torch.set_num_threads(1)
