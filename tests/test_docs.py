"""The docs say what is: their code runs, their links lead somewhere, their names are real."""

from __future__ import annotations

import html
import http.server
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import children
import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# What a recipe needs around it, as its page says.
BEFORE_A_RECIPE = """
import torch
from torch import nn
torch.manual_seed(0)
device = "cpu"
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loss_function = nn.CrossEntropyLoss()
batches = [(torch.randn(16, 8), torch.randint(2, (16,))) for _ in range(12)]
loader = torch.utils.data.DataLoader(batches, batch_size=None)
weights_at_first = [parameter.clone() for parameter in model.parameters()]
"""
# A recipe that trains has moved the weights.
AFTER_A_RECIPE = """
trains = "backward(" in {code!r}
weights = [parameter.detach() for parameter in model.parameters()]
weights = [tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for tensor in weights]
moved = any(not torch.equal(old, new) for old, new in zip(weights_at_first, weights))
assert moved == trains, "the weights " + ("moved" if moved else "did not move")
"""
ONE_RANK = """
import os, torch.distributed
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
torch.distributed.init_process_group("gloo")
"""
A_RUN = """
import ampwatch
torch.manual_seed(0)
inner, scaler = torch.nn.Linear(8, 2), torch.amp.GradScaler("cpu")
descent = torch.optim.SGD(inner.parameters(), lr=0.1)
with ampwatch.attach(scaler, inner, run="train-1204"):
    for _ in range(200):
        inputs = torch.randn(64, 8)
        with torch.autocast("cpu", torch.float16):
            loss = loss_function(inner(inputs), (inputs.sum(1) > 0).long())
        descent.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(descent)
        scaler.update()
"""
A_CHECKPOINT = """
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
LlamaForCausalLM(LlamaConfig(vocab_size=8, **sizes)).to(torch.bfloat16).save_pretrained("tiny")
name = "tiny"
"""
A_WATCH = """
import ampwatch
scaler = torch.amp.GradScaler(device)
watch = ampwatch.attach(scaler, model)
"""
# What the code of a page needs around it besides what a recipe needs.
AROUND = {
    "alerts.md": A_WATCH,
    "changes.md": """
import ampwatch
model.blocks = nn.ModuleList([nn.ModuleDict({"up": nn.Linear(8, 8)})])
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
""",
    "faq.md": "",
    "fleet.md": A_RUN + "ampwatch.publish('ampwatch-runs', 'place')\n",
    "guard.md": "import ampwatch\n",
    "half_precision_weights.md": A_CHECKPOINT,
    "index.md": A_WATCH,
    "loss_scaling.md": "",
    "mirrors.md": A_WATCH + "import wandb\nwandb.init(mode='offline')\n",
    "questions.md": ONE_RANK + A_WATCH,
    "reference.md": A_RUN,
    "restart.md": A_WATCH + "import json\nfrom pathlib import Path\nstate, path = {}, 'last.pt'\n",
    "steering.md": A_WATCH + "ask_my_loop_to_end = state = dict\n",
    "zh/index.md": A_WATCH,
    "zh/loss_scaling.md": "",
}
# Code that tests of other files run.
TRIED_BY_ITS_MARK = ("recipe", "file", "cell", "query", "signature")
TRIED_ELSEWHERE = {"agents.md": "test_schemas", "many_ranks.md": "test_many_ranks_page"}


def unmarked(page: str) -> list[str]:
    """The code of a page that has no mark, in its order."""
    pattern = r"(?:<!-- (\w+)[^>]*-->\n)?```python\n(.*?)```"
    found = re.findall(pattern, (DOCS / page).read_text("utf-8"), re.DOTALL)
    assert {mark for mark, _ in found} <= {"", *TRIED_BY_ITS_MARK}
    return [code for mark, code in found if not mark]


def blocks(page: str, mark: str) -> list[tuple[str, str]]:
    """The code blocks of a page that stand behind a mark: what the mark says, and the code."""
    pattern = rf"<!-- {mark}:? ?([^>]*?) ?-->\n```\w*\n(.*?)```"
    return re.findall(pattern, (DOCS / page).read_text("utf-8"), re.DOTALL)


PAGES_OF_RECIPES = ("recipes.md", "frameworks.md")
RECIPES = [recipe for page in PAGES_OF_RECIPES for recipe in blocks(page, "recipe")]


def headings() -> list[str]:
    """The heading above each recipe."""
    text = "".join((DOCS / page).read_text("utf-8") for page in PAGES_OF_RECIPES)
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return [
        name
        for name, text in zip(parts[::2], parts[1::2], strict=True)
        for _ in range(text.count("<!-- recipe"))
    ]


def python(code: str, folder: Path) -> None:
    """Run a program in a folder; those of the quickstart are started as a reader starts them."""
    done = children.run("-c", code, env=os.environ, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "code"), RECIPES, ids=[f"{n}-{name}" for n, name in enumerate(headings())]
)
def test_a_recipe_trains(kind, code, tmp_path):
    around = ONE_RANK if kind == "distributed" else ""
    python(BEFORE_A_RECIPE + around + code + AFTER_A_RECIPE.format(code=code), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", AROUND)
def test_the_code_of_a_page_runs(page, tmp_path):
    code = "".join(unmarked(page)).replace("s3://team/runs", "place")
    assert code
    python(BEFORE_A_RECIPE + AROUND[page] + code, tmp_path)


@pytest.mark.slow
def test_the_commands_of_a_page_do_something(tmp_path):
    """On runs and a log with the names that the pages use."""
    names = ("RUN", "GOOD", "BAD", "rate-1", "rate-2", "train")
    runs = "".join(
        A_RUN.replace("train-1204", name).replace("lr=0.1", f"lr={0.1 * number}")
        for number, name in enumerate(names, start=1)
    )
    log = "".join(f"step {step} loss {3 / step:.4f} lr 0.1\n" for step in range(1, 200))
    (tmp_path / "train.log").write_text(log, encoding="utf-8")
    (tmp_path / "ampwatch").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ampwatch "$@"\n')
    (tmp_path / "ampwatch").chmod(0o700)
    python(BEFORE_A_RECIPE + runs, tmp_path)
    path = f"{tmp_path}:{os.environ['PATH']}"
    for page in ("command_line.md", "index.md", "restart.md", "sharing.md"):
        text = (DOCS / page).read_text("utf-8")
        for block in re.findall(r"(?<!-->\n)```bash\n(.*?)```", text, re.DOTALL):
            done = subprocess.run(
                ["bash", "-e", "-c", block], cwd=tmp_path, env={**os.environ, "PATH": path},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, (page, block, done.stderr)
            assert done.stdout, (page, block)


def test_the_chinese_quickstart_has_the_commands_of_the_english_one():
    english, chinese = (
        re.findall(r"```bash\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
        for page in ("quickstart.md", "zh/quickstart.md")
    )
    assert chinese == english


def test_no_code_is_left_untried():
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.glob("**/*.md")]
    with_code = {page for page in pages if "findings/" not in page and unmarked(page)}
    assert with_code == {*AROUND, *TRIED_ELSEWHERE}


def test_every_recipe_is_tried():
    text = "".join((DOCS / page).read_text("utf-8") for page in PAGES_OF_RECIPES)
    assert len(RECIPES) == text.count("```python") > 10


def text_of_picture(name: str) -> str:
    """What a picture says, without the numbers that refer to the page."""
    picture = (DOCS / "pictures" / name).read_text("utf-8")
    texts = re.findall(r'<text [^>]*text-anchor="start"[^>]*>(.*?)</text>', picture)
    return html.unescape(" ".join(texts))


def test_the_pages_explain_each_number_of_the_picture_of_a_report():
    marks = (DOCS / "pictures" / "report_numbered.svg").read_text("utf-8").count("<circle")
    for page in (DOCS / "reading_a_report.md", DOCS / "zh" / "reading_a_report.md"):
        explained = re.findall(r"^\*\*(\d)\. ", page.read_text("utf-8"), re.MULTILINE)
        assert explained == [f"{number}" for number in range(1, marks + 1)]


@pytest.mark.slow
def test_the_quickstart_does_what_it_says(tmp_path):
    ((name, code),) = blocks("quickstart.md", "file")
    (tmp_path / name).write_text(code, encoding="utf-8")
    printed: dict[str, str] = {}
    for _, commands in blocks("quickstart.md", "run"):
        for line in commands.splitlines():
            program, *arguments = shlex.split(line)
            command = (
                ["-W", "ignore", *arguments] if program == "python" else ["-m", *shlex.split(line)]
            )
            done = subprocess.run(
                [sys.executable, *command],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            printed[line] = done.stdout
    assert printed["ampwatch report first"].startswith("FAILING")
    advised = float(re.search(r"learning rate of ([\d.]+)", printed["ampwatch report first"])[1])
    assert advised == pytest.approx(0.08, rel=0.3)  # the page's second training takes this one
    assert printed["ampwatch report second"].startswith("HEALTHY")
    assert "lr" in printed["ampwatch compare first second"]
    # Where a training in fp16 begins to diverge depends on how a processor rounds. The warm-up does
    # not: it reaches 3.0 in 300 steps.
    words = (
        r"FAILING first 400 steps, fp16 Learning rate too high \(AMP302\) "
        r"Training broke down at step (\d+), when the warm-up to 3.0 had reached lr = (\S+)\. "
        r"What to do 1. Start from scratch .+ What happened .+ "
        r"How sure Cause: the learning rate, .+ Also .+ More .+"
    )
    for report in (text_of_picture("report_numbered.svg"), printed["ampwatch report first"]):
        step, rate = re.fullmatch(words, " ".join(report.split())).groups()
        assert float(rate) == pytest.approx(0.01 * int(step), abs=0.02)


def test_the_signature_on_the_page_is_the_functions():
    import ampwatch

    ((name, shown),) = blocks("reference.md", "signature")
    assert name == "ampwatch.attach"
    described = re.findall(r"(\w+)(?:=([^,)]+))?[,)]", shown.split("(", 1)[1])
    real = inspect.signature(ampwatch.attach).parameters.values()
    assert described == [
        (each.name, "" if each.default is inspect.Parameter.empty else repr(each.default))
        for each in real
    ]


def test_every_variable_on_the_page_is_read_by_the_program():
    named = re.findall(
        r"^\| `(AMPWATCH\w*)", (DOCS / "reference.md").read_text("utf-8"), re.MULTILINE
    )
    source = "".join(path.read_text("utf-8") for path in ROOT.glob("ampwatch/**/*.py"))
    assert named
    assert [name for name in named if f'"{name}' not in source] == []


def test_the_site_is_built_without_a_broken_link(tmp_path):
    built_site(tmp_path)
    assert (tmp_path / "faq" / "index.html").is_file()
    assert (tmp_path / "search" / "search_index.json").is_file()
    fetched = re.findall(
        r'(?:src|href)="(https?:[^"]+\.(?:js|css|woff2?))"',
        (tmp_path / "index.html").read_text("utf-8"),
    )
    assert fetched == []  # a reader's browser asks nobody else


def built_site(folder, **environment):
    """The site, built in a folder."""
    build = ["mkdocs", "build", "--strict", "-f", "docs/site/mkdocs.yml", "-d", folder]
    done = subprocess.run(
        [sys.executable, "-m", *build], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_says_what_it_answers_to_search_engines_and_in_llms_txt(tmp_path):
    address = "https://docs.example.org/"
    repository = "https://code.example.org/ampwatch/"
    site = built_site(
        tmp_path, AMPWATCH_SITE_URL=address, AMPWATCH_REPOSITORY_URL=repository,
        AMPWATCH_DOCS_VERSIONS="mike",
    )  # fmt: skip
    index = (site / "llms.txt").read_text("utf-8")
    listed = re.findall(r"^- \[(.+)\]\((.+)\): (.+)$", index, re.MULTILINE)
    settings = (ROOT / "docs/site/mkdocs.yml").read_text("utf-8")
    in_navigation = re.findall(r": (\S+[.]md)$", settings, re.MULTILINE)
    assert len(listed) == len(in_navigation) > 30
    assert len(listed) == len({title for title, *_ in listed}) == len({text for *_, text in listed})
    for (title, url, text), source in zip(listed, in_navigation, strict=True):
        page = html.unescape((site / url.removeprefix(address) / "index.html").read_text("utf-8"))
        assert f"<title>{title}" in page
        assert f'<meta name="description" content="{text}"' in page
        assert 25 <= len(text) <= 160
        assert f'href="{repository}edit/main/docs/{source}"' in page
    assert '"provider": "mike"' in page
    # The Chinese pages quote the same messages: who searches for one finds the English page first.
    found = json.loads((site / "search/search_index.json").read_text("utf-8"))["docs"]
    boosts = {one["location"].partition("/")[0]: one.get("boost", 1) for one in found}
    assert boosts["faq"] > boosts["prove"] > boosts["design"] > boosts["zh"]


def test_the_guides_are_no_longer_than_a_reader_bears():
    guides = [page for page in DOCS.glob("*.md") if page.name not in {"columns.md", "design.md"}]
    assert sum(len(page.read_text("utf-8").split()) for page in guides) <= 25_000


# A question as people ask it, and where the section that answers it begins.
QUESTIONS = {
    "should I divide the learning rate by ten": "questions/#is-the-learning-rate",
    "GradScaler loss scale goes to 0": "faq/#the-loss-scale-goes-to-0",
    "how do I log the gradient norm to wandb": "mirrors/",
    "lr_scheduler.step() before optimizer.step() warning amp": "faq/#detected-call",
    "get a slack notification when training diverges": "alerts/",
    "diagnose a training log without a code change": "foreign_logs/",
    "how to clip gradients with amp": "recipes/#clip-gradients",
    "the loss does not decrease at all": "faq/#the-loss-does-not-decrease",
    "does it work with accelerate": "frameworks/",
    "how much overhead": "costs/",
    "bf16 vs fp16, which should I use": "loss_scaling/#what-is-the-difference",
    "skip a batch with nan gradient": "guard/",
    "amp training slower than fp32": "questions/#why-is-mixed-precision",
    "masked_fill -1e9 half overflow": "faq/#value-cannot-be-converted",  # the sign is no command
    "Minimum loss scale reached": "faq/#current-loss-scale",
    "torch.compile max-autotune nan": "questions/#why-does-torchcompile",
    "梯度裁剪": "zh/",
    "very bad convergence with bf16": "half_precision_weights/#bf16-weights",  # another form
    "T5-large FP16 produces nan in loss": "half_precision_weights/#t5",
    "batch norm running mean nan": "faq/#validation-is-nan",  # BatchNorm
    "save and load grad scaler": "recipes/#save-and-resume",  # GradScaler
    "wandb.watch torch.compile": "mirrors/#does-wandbwatch-work",
    "mat1 and mat2 must have the same dtype, but got Half and Float": "faq/#expected-scalar",
    "overhead of torch.isfinite(loss) in each step": "questions/#what-does-a-check",
    "unscale_() has already been called": "faq/#unscale_-has-already",
    "FSDP ShardedGradScaler": "recipes/#fsdp1-with-fp16-shardedgradscaler",
    "grad norm is nan skipping updating": "faq/#gradient-overflow",  # a message in the text
    "why bf16 doesn't need loss scaling": "questions/#do-i-need-a-gradscaler-with-bf16",
    "what is loss scaling for": "loss_scaling/",
    "optimizer.step() instead of scaler.step(optimizer)": "recipes/#plain",
    "gradient norms per layer": "questions/#how-do-i-see-gradient-norms",
    "bf16 slower than fp16 A100": "questions/#why-is-bf16-slower",
    "apex O2 equivalent in native pytorch": "questions/#what-replaces-apex",
    "do I need a scaler with FSDP2": "questions/#do-i-need-a-gradscaler-with-fsdp",
    "Input type (float) and bias type (c10::Half) should be the same": "faq/#expected-scalar",
    "step() has already been called since the last update()": "faq/#unscale_-has-already",
    "fft with autocast fp16": "faq/#not-implemented",
    "probability tensor contains either inf, nan or element < 0": "faq/#probability-tensor",
    "convert bf16 tensor to numpy": "faq/#got-unsupported-scalartype",
    "Loss is nan, stopping training": "faq/#the-loss-becomes-nan",
    "precision 16-mixed vs 16-true lightning": "questions/#how-do-i-switch",
    "nan only on one gpu": "questions/#why-is-the-loss-nan-on-only",
    "mixed precision on macbook mps": "questions/#can-i-use-amp",
    "reproducibility with mixed precision": "questions/#why-are-results",  # reproducible
    "loss scale keeps increasing": "faq/#the-loss-scale-keeps",
    "wandb.watch FSDP gradients not logged": "questions/#why-are-gradient-hooks",
    "forward hooks torch.compile not called": "questions/#why-are-forward-hooks",
    "grad_norm greater than max_grad_norm": "questions/#why-is-grad_norm-greater",
    "DeepSpeed p.grad is None": "questions/#deepspeed-pgrad-is-none",
    "fp8 slower than fp16": "questions/#why-is-fp8-slower",
    "nan in eval mode": "faq/#validation-is-nan",
    "Adam nan half precision first iteration": "half_precision_weights/#nan-after-the-first",
    "several optimizers manual optimization Lightning": "recipes/#lightning-multiple",
}


def first_results(address: str) -> dict[str, str]:
    """Where the first result of the site's search leads for each question."""
    from playwright.sync_api import sync_playwright

    found = {}
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = chromium.new_page()
        page.goto(f"{address}/?q=scaler")
        links = page.locator("a.md-search-result__link")
        links.first.wait_for()
        for question in QUESTIONS:
            for text, state in (("", "detached"), (question, "visible")):
                page.fill(".md-search__input", text)
                page.press(".md-search__input", "End")  # it looks when a key comes up
                links.first.wait_for(state=state)
            first = links.first.get_attribute("href") or ""
            found[question] = re.sub(r"\?[^#]*", "", first.split("/", 3)[-1])
        chromium.close()
    return found


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium here to search in")
@pytest.mark.slow_browser
def test_the_search_finds_the_page_that_answers_a_question(tmp_path):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    site = partial(Quiet, directory=built_site(tmp_path))
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), site) as server,
        ThreadPoolExecutor() as one,
    ):
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        # In a thread of its own: another test's browser may still be open in this one.
        found = one.submit(first_results, f"http://127.0.0.1:{server.server_port}").result()
        server.shutdown()
    missed = {each: at for each, at in found.items() if not at.startswith(QUESTIONS[each])}
    assert missed == {}


def commands_in(page: Path) -> list[str]:
    """The command lines of ampwatch in a page, in its text and in its blocks."""
    text = page.read_text("utf-8")
    fenced = re.findall(
        r"^(?:\$ |.*\| )?(ampwatch [a-z].*?)(?: +#.*| \|\|.*| \|.*| >.*)?$",
        "".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)),
        re.MULTILINE,
    )
    inline = re.findall(r"`(ampwatch [a-z][^`\n]*)`", text)
    return [*fenced, *inline]


def test_every_command_in_the_docs_is_one_of_today(capsys):
    from ampwatch import cli
    from ampwatch.cli.help_page import PANELS

    commands = {name for names in PANELS.values() for name in names} | {"compact"}
    outdated, helps = [], {}
    for page in [*DOCS.glob("**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for line in commands_in(page):
            words = line.split(" -- ")[0].split()[1:]
            if words[0] == "run":  # what stands behind the script is the script's
                words = words[:2]
            at = 2 if words[0] == "alerts" and len(words) > 1 and words[1].isalpha() else 1
            name = tuple(words[:at])
            if name not in helps:
                cli.run([*name, "--help"])
                helps[name] = capsys.readouterr().out
            options = [word.partition("=")[0] for word in words[at:] if re.match("--?[a-z]", word)]
            missing = [
                each
                for each in options
                if each != "--help" and not re.search(rf"{each}\b", helps[name])
            ]
            if words[0] not in commands or missing:
                outdated.append(f"{page.name}: {line}")
    assert helps
    assert outdated == []
