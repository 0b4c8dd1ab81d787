from __future__ import annotations

import numpy as np
import torch

from backend.classifiers.pair_model import Batch, TorchPairNetwork
from backend.classifiers.pair_network import PairNetwork, pad

NUM_FEATURES = 27


def test_numpy_gives_the_logits_of_torch() -> None:
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    words = torch.randn(40, 384)
    words[0] = 0
    mean, scale = torch.randn(NUM_FEATURES), torch.rand(NUM_FEATURES) + 0.5
    network = TorchPairNetwork(words, mean, scale).eval()
    a = torch.tensor([[3, 4, 5, 6]] * 3)
    b = torch.tensor([[3, 9, 0, 0, 0], [7, 8, 9, 10, 11], [4, 0, 0, 0, 0]])
    vectors = random.standard_normal((3, 768)).astype(np.float32)
    features = random.standard_normal((3, NUM_FEATURES)).astype(np.float32)
    with torch.no_grad():
        expected = network(Batch(a, b, torch.from_numpy(vectors), torch.from_numpy(features))).numpy()
        table = network.projection(words).numpy()
    padded, mask = pad([table[[i for i in row if i]] for row in [a[0].tolist(), *b.tolist()]])
    found = PairNetwork(network.weights()).logits(padded, mask, vectors, features)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_pad_masks_what_it_fills() -> None:
    words, mask = pad([np.ones((2, 3), np.float32), np.ones((1, 3), np.float32)])
    assert words.shape == (2, 2, 3)
    assert mask.tolist() == [[1, 1], [1, 0]]
    assert words[1, 1].tolist() == [0, 0, 0]
