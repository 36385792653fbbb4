"""A stand-in for PyTorch's tensors, which the package takes and does not need."""

import numpy as np


class Tensor:
    """A PyTorch tensor that needs a gradient, as NumPy sees it: `numpy` refuses until it is detached and on the host."""

    def __init__(self, values, dtype="torch.float32", detached=False, on_host=False):
        self.values, self.dtype, self.state = np.asarray(values), dtype, (detached, on_host)
        self.shape, self.ndim = self.values.shape, self.values.ndim

    def detach(self):
        return Tensor(self.values, self.dtype, True, self.state[1])

    def cpu(self):
        return Tensor(self.values, self.dtype, self.state[0], True)

    def float(self):
        return Tensor(self.values, "torch.float32", *self.state)

    def numpy(self):
        if not all(self.state):
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values

    def __array__(self, dtype=None, copy=None):
        return self.numpy()

    def __getitem__(self, place):
        return Tensor(self.values[place], self.dtype, *self.state)

    def __len__(self):
        return len(self.values)
