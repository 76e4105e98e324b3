"""The view plan of ecpp in the words of other libraries: each `make_…(plan)` gives a function from images to tensors.

Every one crops with the same ranges, jitters, greys, blurs (kernel 23 where it has one), solarizes and normalises with
the same probabilities, and stacks float views of one resolution. What differs is said in docs/results.md.
"""

import io

import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg


def from_jpeg(data):
    return decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB)


def to_pil(x):
    return (
        Image.open(io.BytesIO(x)).convert("RGB")
        if isinstance(x, bytes)
        else Image.fromarray(x.permute(1, 2, 0).numpy())
    )


def to_tensor(x):
    return from_jpeg(x) if isinstance(x, bytes) else x


def stacked(plan, views_of, load):
    """Image by image, as data loaders do: `views_of(image)` are its K views."""

    def run(images):
        rows = list(zip(*(views_of(load(x)) for x in images), strict=True))
        return [torch.cat([torch.stack(rows[i]) for i in places]) for _, places in plan.groups]

    return run


def compose(T, plan, view, to_float, blur, solarize):
    steps = [T.RandomResizedCrop(view.size, view.crop_scale, view.crop_ratio, antialias=True)]
    c = view.colour
    if c:
        jitter = T.ColorJitter(c.brightness, c.contrast, c.saturation, c.hue)
        steps += [T.RandomHorizontalFlip(view.flip_p), T.RandomApply([jitter], p=c.jitter_p)]
        steps += [T.RandomGrayscale(c.grey_p)]
        if c.blur_p:
            steps += [blur(c), solarize(c)]
    return T.Compose([*steps, *to_float, T.Normalize(plan.mean, plan.std)])


def make_v1(plan):
    """torchvision's first transforms on PIL images: the paper's own pipeline."""
    from torchvision import transforms as T

    def blur(c):
        return T.RandomApply([T.GaussianBlur(c.blur_kernel, c.blur_sigma)], p=c.blur_p)

    def solarize(c):
        return T.RandomSolarize(128, c.solarize_p)

    views = [compose(T, plan, v, [T.ToTensor()], blur, solarize) for v in plan.views]
    return stacked(plan, lambda x: [f(x) for f in views], to_pil)


def make_v2(plan):
    """torchvision's second transforms on uint8 tensors."""
    from torchvision.transforms import v2 as T

    def blur(c):
        return T.RandomApply([T.GaussianBlur(c.blur_kernel, c.blur_sigma)], p=c.blur_p)

    def solarize(c):
        return T.RandomSolarize(128, c.solarize_p)

    to_float = [T.ToDtype(torch.float32, scale=True)]
    views = [compose(T, plan, v, to_float, blur, solarize) for v in plan.views]
    return stacked(plan, lambda x: [f(x) for f in views], to_tensor)


def make_lightly(plan):
    """lightly's multi-view transform with its own blur and solarization, on PIL images."""
    from lightly.transforms.gaussian_blur import GaussianBlur
    from lightly.transforms.multi_view_transform import MultiViewTransform
    from lightly.transforms.solarize import RandomSolarization
    from lightly.transforms.torchvision_v2_compatibility import torchvision_transforms as T

    def blur(c):
        return GaussianBlur(prob=c.blur_p, sigmas=c.blur_sigma)

    def solarize(c):
        return RandomSolarization(prob=c.solarize_p, threshold=128)

    to_float = (
        [T.PILToTensor(), T.ToDtype(torch.float32, scale=True)] if hasattr(T, "ToDtype") else [T.ToTensor()]
    )
    views = MultiViewTransform([compose(T, plan, v, to_float, blur, solarize) for v in plan.views])
    return stacked(plan, views, to_pil)


def make_kornia(plan):
    """kornia's batched augmentations on float tensors; the images of a batch have one size here."""
    import kornia.augmentation as A
    from torch import nn

    def view(v):
        crop = A.RandomResizedCrop((v.size, v.size), v.crop_scale, v.crop_ratio, cropping_mode="resample")
        steps, c = [crop], v.colour
        if c:
            steps += [A.RandomHorizontalFlip(p=v.flip_p)]
            steps += [A.ColorJitter(c.brightness, c.contrast, c.saturation, c.hue, p=c.jitter_p)]
            steps += [A.RandomGrayscale(p=c.grey_p)]
            if c.blur_p:
                steps += [A.RandomGaussianBlur((c.blur_kernel,) * 2, c.blur_sigma, p=c.blur_p)]
                steps += [A.RandomSolarize((0.5, 0.5), (0.0, 0.0), p=c.solarize_p)]
        return nn.Sequential(*steps, A.Normalize(torch.tensor(plan.mean), torch.tensor(plan.std)))

    views = [view(v) for v in plan.views]

    def run(images):
        x = torch.stack([to_tensor(x) for x in images]).float() / 255
        return [torch.cat([views[i](x) for i in places]) for _, places in plan.groups]

    return run


PEERS = {
    "torchvision v1 (PIL)": make_v1,
    "torchvision v2 (tensors)": make_v2,
    "lightly (PIL)": make_lightly,
    "kornia (batched)": make_kornia,
}
