"""Lightning on a backend of your choice: a small net learns a wave from noisy samples.

    pip install pytorch-lightning
    torchrun --nproc-per-node 2 examples/train_lightning.py
    torchrun --nproc-per-node 2 examples/train_lightning.py --backend gloo

The backend is named in one place, `DDPStrategy(process_group_backend=...)`; `FSDPStrategy` and
`ModelParallelStrategy` take the same argument.
"""

from __future__ import annotations

import argparse
import os

import pytorch_lightning as lightning
import torch
import torch.distributed as dist
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ringcomm  # noqa: F401  registers the backend; torch 2.14 finds it without


class Wave(lightning.LightningModule):
    """A net of one input and one output."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.head = nn.Linear(64, 1)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """Return the loss of one batch; the epoch's is averaged over all ranks."""
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.head(self.net(inputs)), targets)
        self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        """Say how far it is."""
        loss = self.trainer.callback_metrics["loss"]
        self.print(f"epoch {self.current_epoch + 1}: loss {loss:.6f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    """Train, and print the loss of every epoch, over all ranks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--backend", default="ringcomm", help="default %(default)s")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    lightning.seed_everything(1)
    inputs = torch.rand(1024, 1) * 2 - 1
    targets = torch.sin(4 * inputs) + 0.1 * torch.randn(1024, 1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy=DDPStrategy(process_group_backend=options.backend),
        max_epochs=options.epochs,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True)
    model = Wave()
    trainer.fit(model, loader)
    model.print(f"{trainer.world_size} ranks on {dist.get_backend()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
