"""The weighted nearest-neighbour classifier."""

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.no_grad()
def knn_accuracy(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    k: int = 20,
    temperature: float = 0.07,
) -> float:
    """Share of test features whose k most similar training features vote for the right class.

    Similarity is the cosine; a vote weighs exp(similarity / temperature). `k` is cut to the training set.
    """
    if not len(train) or not len(test):
        raise ValueError(
            f"kNN needs features on both sides, but has {len(train)} to vote and {len(test)} to judge"
        )
    bank = F.normalize(train, dim=1)
    classes = int(train_labels.max()) + 1
    right = 0
    parts = zip(torch.split(F.normalize(test, dim=1), 1024), torch.split(test_labels, 1024), strict=True)
    for queries, truth in parts:
        similarity, index = (queries @ bank.T).topk(min(k, len(bank)), dim=1)  # (Q, k)
        votes = torch.zeros(len(queries), classes)
        votes.scatter_add_(1, train_labels[index], (similarity / temperature).exp())
        right += int((votes.argmax(dim=1) == truth).sum())
    return right / len(test)
