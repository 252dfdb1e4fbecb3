"""A Lightning module on a DataLoader, for bench/python_faults.py.

    python lightning_module.py FOLDER
"""

import sys
import time

import lightning
import torch
import torchvision
from torchvision.transforms import v2


class Classifier(lightning.LightningModule):
    def __init__(self, classes):
        super().__init__()
        self.network = torchvision.models.squeezenet1_1(num_classes=classes)

    def training_step(self, batch, _):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.network(images), labels)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def connect(_):
    time.sleep(0.5)  # as a worker that opens a database


def main():
    augment = v2.Compose([v2.RandomResizedCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    dataset = torchvision.datasets.ImageFolder(sys.argv[1], augment)
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2, persistent_workers=True,
                                         worker_init_fn=connect, drop_last=True)
    trainer = lightning.Trainer(max_epochs=1000, accelerator="cpu", logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Classifier(len(dataset.classes)), loader)


if __name__ == "__main__":
    main()
