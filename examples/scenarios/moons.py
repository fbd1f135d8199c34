"""Code of your own: a network of two layers tells two half moons apart. See own-code.toml."""

import torch
from sklearn.datasets import make_moons
from torch import nn
from torch.nn.functional import cross_entropy

from anabranch.train.checksum import checksum
from anabranch_lab.tasks._flat import FlatModel


class Moons:
    """What one site does; `anabranch.train.work` has the protocol."""

    def __init__(self, context):
        points, labels = make_moons(4000, noise=0.2, random_state=context.seed)
        points, labels = torch.tensor(points, dtype=torch.float32), torch.tensor(labels)
        train = slice(context.site, 3000, context.sites)  # this site's samples
        self.points, self.labels, self.held_out = points[train], labels[train], points[3000:]
        self.right = labels[3000:]
        width = context.options["width"]
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2))
        self.flat = FlatModel(self.net)  # all parameters in one array, all gradients in another
        self.buffer = self.flat.gradients
        self.adam = torch.optim.Adam(self.net.parameters(), context.options["learning_rate"])

    def local_step(self, samples):
        """Leave the gradients of a batch in the buffer."""
        batch = torch.randint(len(self.labels), (samples,))
        self.flat.zero_gradients()
        loss = cross_entropy(self.net(self.points[batch]), self.labels[batch])
        loss.backward()
        return loss.item()

    def apply(self, round):
        """Step with the mean gradients, which the buffer now holds."""
        self.adam.step()
        return checksum(self.flat.parameters)  # all sites must have the same

    def evaluate(self):
        """Return the share of points that are told apart rightly."""
        with torch.inference_mode():
            return (self.net(self.held_out).argmax(1) == self.right).float().mean().item()

    def state_dict(self):
        """Return all that goes on from here; the weights are under "model"."""
        return {"model": self.net.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state):
        """Go on from there."""
        self.net.load_state_dict(state["model"])
        self.adam.load_state_dict(state["adam"])
