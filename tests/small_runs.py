"""A run folder without training: an encoder whose BatchNorms are not those of an untrained one."""

from dataclasses import replace

import torch
from torch import nn

from ecpp.config import Config
from ecpp.run import build
from ecpp.run.folder import write_json
from ecpp.run.resolve import resolve_views
from ecpp.train import save_checkpoint


def make_run(
    out, encoder="resnet10", *, size=32, small=20, width=4, channels=3, source="patterns:200", seed=0
):
    out.mkdir(parents=True, exist_ok=True)
    config = Config(
        source=source, encoder=encoder, width=width, channels=channels, large=size, small=small, seed=seed
    )
    ran = replace(
        resolve_views(config, size), projector_layers=2, precision="fp32", device="cpu", threads=1, workers=0
    )
    if channels != 3:
        ran = replace(ran, mean=(0.5,) * channels, std=(0.25,) * channels)
    net = build.build_encoder(ran)
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.weight, 0.3, 0.6)
            nn.init.normal_(m.bias, std=0.1)
            nn.init.normal_(m.running_mean, std=0.1)
            nn.init.uniform_(m.running_var, 0.5, 2)
    state = net.to(memory_format=torch.channels_last).state_dict()
    about = {"config": config.to_json(), "resolved": ran.to_json(), "images": {"count": 200}}
    write_json(out / "run.json", about | {"environment": {"ecpp": "0.1.0"}})
    method = {f"encoder.{k}": v for k, v in state.items()} | {"projector.0.weight": torch.zeros(2, 2)}
    save_checkpoint({"method": method, "step": 9}, out / "checkpoint.pt")
    return out
