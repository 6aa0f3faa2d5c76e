"""Policies that lose their reward for a known cause: which of the two signs shows which cause.

    python benchmarks/policy_trainings.py FOLDER [RUNS]     trains, judges, prints the table

A small transformer sorts numbers and is trained by GRPO on whether it is right. At some step the
cause begins: the learning rate leaps or is warmed up too far, the engine that samples rounds its
weights more coarsely, the answer key is turned round, the task becomes another one, another goal is
rewarded, the entropy is pushed up. Each run is logged as verl prints it, in FOLDER, and is
judged from that log. A run that is there already is not trained again.
"""

from __future__ import annotations

import collections
import copy
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ampwatch import diagnose, open_run
from ampwatch.importers import import_log

NUMBERS, LENGTH, GROUP, PROMPTS, STEPS, BEFORE, EPOCHS = 20, 6, 8, 16, 120, 150, 2
LOW, HIGH, TO_REFERENCE = 0.8, 1.28, 1e-3  # of the ratio; the weight of the KL divergence


@dataclass(frozen=True, slots=True)
class Fault:
    """What makes a policy lose its reward, and how it was trained."""

    name: str
    cause: str
    lr: float = 3e-4
    bits: int = 4  # of the mantissa of the weights that sample
    entropy: float = 0.0


RATE, ROLLOUT, OTHER = "rate", "rollout", "other"
FAULTS = (
    Fault("rate_leap", RATE), Fault("numerics_turn", ROLLOUT, bits=5),
    Fault("rate_warm", RATE, lr=1e-2), Fault("label", OTHER),
    Fault("numerics_grow", ROLLOUT, bits=6), Fault("harder", OTHER),
    Fault("entropy", OTHER, entropy=0.6), Fault("hack", OTHER),
)  # fmt: skip


class Policy(nn.Module):
    """A transformer of two layers over the prompt, a mark, and what it has answered so far."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.words = nn.Embedding(NUMBERS + 1, width)
        self.places = nn.Parameter(torch.randn(2 * LENGTH + 1, width) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, NUMBERS)

    def forward(self, prompt: Tensor, answer: Tensor) -> Tensor:
        mark = torch.full((len(prompt), 1), NUMBERS)
        told = torch.cat([prompt, mark, answer], 1)
        mask = torch.triu(torch.full((told.shape[1],) * 2, -math.inf), 1)
        found = self.words(told) + self.places[: told.shape[1]]
        for layer in self.layers:
            found = layer(found, src_mask=mask)
        return self.head(self.norm(found))[:, LENGTH:].log_softmax(-1)

    def of(self, prompt: Tensor, answer: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probability of each token of an answer, and the entropy where it was chosen."""
        told = self(prompt, answer[:, :-1])
        return told.gather(2, answer[..., None])[..., 0], -(told.exp() * told).sum(-1)

    def rounded(self, bits: int) -> Policy:
        """A copy whose weights have so many bits of mantissa: the engine that samples."""
        other = copy.deepcopy(self)
        with torch.no_grad():
            for weight in other.parameters():
                share, power = torch.frexp(weight)
                weight.copy_(torch.ldexp((share * 2**bits).round() / 2**bits, power))
        return other

    @torch.no_grad()
    def sample(self, prompt: Tensor) -> tuple[Tensor, Tensor]:
        """An answer to each prompt, and the log-probability with which each token was drawn."""
        answer = torch.zeros(len(prompt), 0, dtype=torch.long)
        drawn = []
        for _ in range(LENGTH):
            told = self(prompt, answer)[:, -1]
            token = torch.multinomial(told.exp(), 1)
            drawn.append(told.gather(1, token))
            answer = torch.cat([answer, token], 1)
        return answer, torch.cat(drawn, 1)


def reward_of(answer: Tensor, right: Tensor) -> Tensor:
    return (answer == right).float().mean(1) + (answer == right).all(1).float()


def train(fault: Fault, seed: int) -> Iterator[Mapping[str, float]]:
    """Train a policy; what verl would log of each step, under its names."""
    torch.manual_seed(seed)
    policy = Policy()
    optimizer = torch.optim.AdamW(policy.parameters(), 1e-3)
    for _ in range(BEFORE):  # what a base model can
        prompt = torch.randint(0, NUMBERS, (64, LENGTH))
        loss = -policy.of(prompt, prompt.sort(1).values)[0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    reference = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), fault.lr)
    turn = int(STEPS * (0.35 + 0.3 * torch.rand(()).item()))
    for step in range(1, STEPS + 1):
        has_begun = step >= turn
        if fault.name == "rate_leap" and step == turn:
            optimizer.param_groups[0]["lr"] = 30 * fault.lr
        if fault.name == "rate_warm":
            optimizer.param_groups[0]["lr"] = fault.lr * min(1.0, step / (0.6 * STEPS))
        bits = fault.bits
        if fault.name == "numerics_turn" and has_begun:
            bits = 0
        if fault.name == "numerics_grow":
            bits = max(0, round(bits * (1 - step / STEPS)))
        prompt = torch.randint(0, NUMBERS, (PROMPTS, LENGTH))
        right = prompt.sort(1).values
        if fault.name == "label" and has_begun:
            right = right.flip(1)
        if fault.name == "harder" and has_begun:
            right = (right + prompt.roll(1, 1)) % NUMBERS
        prompt, right = (part.repeat_interleave(GROUP, 0) for part in (prompt, right))
        answer, drawn = policy.rounded(bits).sample(prompt)
        shown = reward = reward_of(answer, right)
        if fault.name == "hack" and has_begun:
            reward = (answer == 0).float().mean(1)
        groups = reward.view(PROMPTS, GROUP)
        advantage = (groups - groups.mean(1, True)) / (groups.std(1, keepdim=True) + 1e-4)
        told = _update(policy, reference, optimizer, fault, prompt, answer, advantage.view(-1, 1))
        gap = (told.pop("old").exp() - drawn.exp()).abs()
        yield {
            **told,
            "training/rollout_probs_diff_max": float(gap.max()),
            "training/rollout_probs_diff_mean": float(gap.mean()),
            "actor/lr": optimizer.param_groups[0]["lr"],
            "training/global_step": step,
            "critic/score/mean": float(shown.mean()),
            "critic/rewards/mean": float(shown.mean()),
        }


def _update(
    policy: Policy, reference: Policy, optimizer: torch.optim.Optimizer, fault: Fault,
    prompt: Tensor, answer: Tensor, advantage: Tensor,
):  # fmt: skip
    """Two epochs of two mini-batches of GRPO, and the means of what they show."""
    with torch.no_grad():
        old, entropy = policy.of(prompt, answer)
        before = reference.of(prompt, answer)[0]
    sums = collections.Counter[str]()
    for part in (part for _ in range(EPOCHS) for part in torch.randperm(len(prompt)).chunk(2)):
        new, spread = policy.of(prompt[part], answer[part])
        ratio, worth = (new - old[part]).clamp(-20, 20).exp(), advantage[part]
        loss = -torch.min(ratio * worth, ratio.clamp(LOW, HIGH) * worth).mean()
        apart = (before[part] - new).clamp(-20, 20)
        apart = (apart.exp() - apart - 1).mean()
        optimizer.zero_grad()
        (loss + TO_REFERENCE * apart - fault.entropy * spread.mean()).backward()
        norm = nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        clipped = ((ratio > HIGH) & (worth > 0)) | ((ratio < LOW) & (worth < 0))
        sums.update({
            "actor/pg_loss": loss.item(), "actor/kl_loss": apart.item(),
            "actor/pg_clipfrac": clipped.float().mean().item(),
            "actor/ppo_kl": (old[part] - new).mean().item(), "actor/grad_norm": norm.item(),
        })  # fmt: skip
    told = {name: value / (2 * EPOCHS) for name, value in sums.items()}
    return {"actor/entropy": entropy.mean().item(), **told, "old": old}


def named_cause(log: Path) -> tuple[str, str, str]:
    """The verdict on a log, its outcome, and the cause that is named, if one is."""
    with tempfile.TemporaryDirectory() as folder:
        told = diagnose(open_run(import_log(log, Path(folder))))
    likely = [one.cause for one in told.causes if one.probability >= 0.6]
    return told.verdict.value, told.outcome.state.value, ", ".join(likely)


def main() -> None:
    torch.set_num_threads(1)
    folder, runs = Path(sys.argv[1]), int((sys.argv[2:] or ["48"])[0])
    folder.mkdir(exist_ok=True, parents=True)
    counted: collections.Counter[tuple[str, str]] = collections.Counter()
    print("| run | cause | verdict | outcome | named |\n|---|---|---|---|---|")
    for seed in range(runs):
        fault = FAULTS[seed % len(FAULTS)]
        log = folder / f"{fault.name}_{seed}.txt"
        if not log.exists():
            lines = (
                " - ".join([f"step:{step}", *(f"{name}:{value}" for name, value in row.items())])
                for step, row in enumerate(train(fault, seed), 1)
            )
            log.write_text("\n".join(lines) + "\n")
        verdict, outcome, named = named_cause(log)
        counted[fault.cause, named] += 1
        print(f"| {log.stem} | {fault.cause} | {verdict} | {outcome} | {named} |", flush=True)
    for (cause, named), count in sorted(counted.items()):
        print(f"{count} of {cause}: {named or 'no cause named'}")


if __name__ == "__main__":
    main()
