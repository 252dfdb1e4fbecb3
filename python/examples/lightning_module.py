"""Trains a small network with Lightning on saturate's loader.

    python lightning_module.py [SOURCE]

Lightning saves the loader's position in its checkpoints, also within an epoch. With several processes each rank reads
its part of each batch: Lightning needs no DistributedSampler, and batch= counts the images of all ranks.
"""

import sys

import lightning
import saturate
import torch
from torch import nn


class Classifier(lightning.LightningModule):
    def __init__(self, classes):
        super().__init__()
        self.network = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
                                     nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
                                     nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, classes))

    def training_step(self, batch, _):
        images, (labels, mixed_labels, lam) = batch
        output = self.network(images)
        loss = nn.functional.cross_entropy
        return lam * loss(output, labels) + (1 - lam) * loss(output, mixed_labels)

    def validation_step(self, batch, _):
        images, labels = batch
        self.log("accuracy", (self.network(images).argmax(1) == labels).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main(source="synth:size=32,count=2000"):
    training = saturate.Loader(source, batch=50, size=32, mixup=0.2, to="torch")
    evaluation = saturate.Loader(source, batch=50, size=32, train=False, to="torch")
    trainer = lightning.Trainer(max_epochs=5, accelerator="auto", logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Classifier(len(training.classes)), training, evaluation)
    print(f"accuracy {trainer.callback_metrics['accuracy']:.3f} after {trainer.global_step} steps")


if __name__ == "__main__":
    main(*sys.argv[1:])
