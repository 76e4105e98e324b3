"""From images to K views: plan them, draw their random numbers, render them in one batch."""

from ecpp.views.batch import ViewBatch
from ecpp.views.draws import Params, draw
from ecpp.views.plan import CIFAR, IMAGENET, Colour, View, ViewPlan, plan
from ecpp.views.render import finish, make, render

__all__ = [
    "CIFAR",
    "IMAGENET",
    "Colour",
    "Params",
    "View",
    "ViewBatch",
    "ViewPlan",
    "draw",
    "finish",
    "make",
    "plan",
    "render",
]
