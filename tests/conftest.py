"""One thread: the tensors of the tests are small, and waiting for a second thread takes longer than computing."""
import torch

torch.set_num_threads(1)
