"""One rank of three that train together over gloo, as torchrun starts it; one is killed.

Arguments: the folder for the run, and the step after which the rank `DIES` kills itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from wrapper_parts import Net, Training, batch

import ampwatch


def main(folder, last_step):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = Net()
    training = Training(model, attached=DistributedDataParallel(model))
    with ampwatch.attach(training.scaler, training.attached, log_dir=folder, run="r"):
        for step in range(1000):
            training.optimizers[0].zero_grad()
            inputs, targets = batch(step, rank)
            with torch.autocast("cpu", torch.float16):
                outputs = training.call(inputs)
            loss = torch.nn.functional.mse_loss(outputs.float(), targets)
            training.scaler.scale(loss).backward()
            training.scaler.step(training.optimizers[0])
            training.scaler.update()
            if step == last_step and os.environ["DIES"] == str(rank):
                time.sleep(1.0)  # what a killed rank has not flushed nobody can know
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
