"""Recipes of programs that train on pictures."""

from __future__ import annotations

from programs_data import (
    boxes,
    flying_chairs,
    images,
    images_and_a_tiny_clip,
    masks,
    more_images,
)
from programs_recipe import RATE_TOO_HIGH, Broken, Edit, Program

NO_UNSCALE = "`unscale_` left out before clipping"
AUTOCAST_ON_CPU = 'torch.autocast("cpu", torch.float16, '


def overflowing(file: str, line: str, *, after: int) -> Edit:
    """An fc2 that is fed values ten million times too large, from some call on, where it trains."""
    return Edit(
        file,
        line,
        "self.calls = getattr(self, 'calls', 0) + 1; "
        f"x = self.fc2(x.float() * 1e7 if self.calls > {after} "
        "and self.fc2.weight.requires_grad else x)",
    )


OPEN_CLIP = Program(
    name="open_clip",
    repository="mlfoundations/open_clip",
    commit="89fb801f1e6087880e951fc8354b8a2077b79c6d",
    trains="fp16, GradScaler, AdamW with two groups",
    folder="src",
    command=(
        "-m", "open_clip_train.main", "--model=tiny", "--precision=amp", "--device=cpu",
        "--dataset-type=csv", "--train-data=captions.csv", "--csv-img-key=filepath",
        "--csv-caption-key=title", "--batch-size=16", "--epochs=8", "--workers=0",
        "--warmup=10", "--lr=1e-3", "--seed=1", "--name=it",
    ),
    make_data=images_and_a_tiny_clip,
    broken=(
        Broken("a rate of 10", RATE_TOO_HIGH, arguments=("--lr=10",)),
        Broken(
            NO_UNSCALE,
            ("AMP401",),
            (Edit("open_clip_train/train.py", "scaler.unscale_(optimizer)", "pass"),),
            ("--grad-clip-norm=1",),
        ),
    ),
)  # fmt: skip

TIMM = Program(
    name="timm",
    repository="huggingface/pytorch-image-models",
    commit="aa4b5850c1543fa488abf260f18390eda46cf85d",
    trains="bf16 autocast, no scaler on the CPU, a worker",
    folder=".",
    command=(
        "train.py", "images", "--model=resnet10t", "--num-classes=4", "--img-size=32",
        "--batch-size=8", "--epochs=3", "--workers=1", "--device=cpu", "--amp",
        "--amp-dtype=bfloat16", "--opt=sgd", "--lr=0.05", "--warmup-epochs=1", "--seed=1",
        "--experiment=it",
    ),
    make_data=images,
    broken=(
        Broken("a rate of 500", RATE_TOO_HIGH, arguments=("--lr=500",)),
        Broken(
            "one batch divided by 0",
            ("AMP209",),
            (
                Edit(
                    "train.py",
                    "result = task(input, target)",
                    "result = task(input / (epoch != 1 or batch_idx != 10), target)",
                ),
            ),
        ),
    ),
)  # fmt: skip

PYTORCH_UNET = Program(
    name="Pytorch-UNet",
    repository="milesial/Pytorch-UNet",
    commit="21d7850f2af30a9695bbeea75f3136aa538cfc4a",
    trains="bf16 autocast with a GradScaler, W&B offline",
    folder=".",
    command=("train.py", "--amp", "-e=2", "-b=4", "-s=0.5", "-l=1e-4"),
    make_data=masks,
    edits=(
        Edit("train.py", "cuda.amp.GradScaler(", "amp.GradScaler('cpu', "),
        Edit("train.py", "args = get_args()", "args = get_args(); torch.manual_seed(0)"),
    ),
    broken=(
        Broken("a rate of 10", RATE_TOO_HIGH, arguments=("-l=10",)),
        Broken(
            NO_UNSCALE, ("AMP401",), (Edit("train.py", "grad_scaler.unscale_(optimizer)", "pass"),)
        ),
    ),
)

MAE = Program(
    name="MAE",
    repository="facebookresearch/mae",
    commit="efb2a8062c206524e35e47d04501ed4f544c0ae8",
    trains="fp16, its own scaler class, leaves with 1 on a loss that is not finite",
    folder=".",
    command=(
        "main_pretrain.py", "--data_path=images", "--input_size=32", "--batch_size=8",
        "--epochs=2", "--warmup_epochs=1", "--num_workers=0", "--device=cpu", "--blr=2e-2",
    ),
    make_data=more_images,
    edits=(
        Edit("engine_pretrain.py", "torch.cuda.amp.autocast()", f"{AUTOCAST_ON_CPU}True)"),
        Edit("engine_pretrain.py", "torch.cuda.synchronize()", "pass"),
        Edit("util/misc.py", "torch.cuda.amp.GradScaler()", 'torch.amp.GradScaler("cpu")'),
        Edit("util/misc.py", "from torch._six import inf", "from math import inf"),
        Edit("util/pos_embed.py", "np.float)", "np.float64)"),
        Edit("models_mae.py", "qk_scale=None, ", ""),
        Edit("main_pretrain.py", "assert timm", "timm"),
        Edit("main_pretrain.py", "add_weight_decay", "param_groups_weight_decay"),
        Edit(
            "main_pretrain.py",
            "models_mae.__dict__[args.model](",
            "models_mae.MaskedAutoencoderViT(img_size=32, patch_size=4, embed_dim=64, depth=2, "
            "num_heads=4, decoder_embed_dim=32, decoder_depth=1, decoder_num_heads=4, ",
        ),
    ),
    broken=(
        Broken("a rate a million times its own", RATE_TOO_HIGH, arguments=("--blr=2e4",)),
        Broken(
            "from the 80th step on, decoder_pred is fed values a million times too large",
            ("AMP203",),
            (
                Edit(
                    "models_mae.py",
                    "x = self.decoder_pred(x)",
                    "self.calls = getattr(self, 'calls', 0) + 1; "
                    "x = self.decoder_pred(x.float() * 1e6 if self.calls > 80 else x)",
                ),
            ),
            layer="decoder_pred",
        ),
    ),
    times=r"(time|data): [\d.]+",
)  # fmt: skip

DINO = Program(
    name="DINO",
    repository="facebookresearch/dino",
    commit="7c446df5b9f45747937fb0d72314eb9f7b66930a",
    trains="fp16, GradScaler, DDP, a teacher, clips through `.data`, leaves with 1 on nan",
    folder=".",
    command=(
        "torchrun", "--standalone", "--nproc-per-node=1", "main_dino.py", "--arch=vit_tiny",
        "--patch_size=8", "--out_dim=128", "--local_crops_number=2", "--batch_size_per_gpu=8",
        "--epochs=2", "--warmup_epochs=0", "--warmup_teacher_temp_epochs=0", "--num_workers=0",
        "--data_path=images/train", "--lr=0.01", "--clip_grad=0.3", "--freeze_last_layer=0",
    ),
    make_data=more_images,
    edits=(
        Edit("main_dino.py", "student.cuda(), teacher.cuda()", "student, teacher"),
        Edit("main_dino.py", "    ).cuda()", "    )"),
        Edit("main_dino.py", "torch.cuda.amp.GradScaler()", 'torch.amp.GradScaler("cpu")'),
        Edit("main_dino.py", "im.cuda(non_blocking=True)", "im"),
        Edit("main_dino.py", "torch.cuda.amp.autocast(", AUTOCAST_ON_CPU),
        Edit("main_dino.py", "torch.cuda.synchronize()", "pass"),
        Edit("main_dino.py", "device_ids=[args.gpu]", "device_ids=None"),
        Edit("main_dino.py", ' + torch.hub.list("facebookresearch/xcit:main")', ""),
        Edit("main_dino.py", "RandomResizedCrop(224", "RandomResizedCrop(32"),
        Edit("main_dino.py", "RandomResizedCrop(96", "RandomResizedCrop(16"),
        Edit("utils.py", 'backend="nccl"', 'backend="gloo"'),
        Edit("utils.py", "torch.cuda.set_device(args.gpu)", "pass"),
        Edit("utils.py", "device='cuda'", "device='cpu'"),
        Edit("utils.py", "np.random.seed(seed)", "np.random.seed(seed); random.seed(seed)"),
        Edit("vision_transformer.py", "embed_dim=192, depth=12", "embed_dim=48, depth=2"),
        Edit("vision_transformer.py", "hidden_dim=2048", "hidden_dim=64"),
    ),
    broken=(
        Broken(
            NO_UNSCALE,
            ("AMP401",),
            (Edit("main_dino.py", "fp16_scaler.unscale_(optimizer)", "pass"),),
        ),
        Broken(
            "an fc2 of the student overflows in the forward pass",
            ("AMP203",),
            (overflowing("vision_transformer.py", "x = self.fc2(x)", after=200),),
            layer="fc2",
        ),
    ),
    times=r"(time|data): [\d.]+",
    launcher=True,
)  # fmt: skip

SWIN = Program(
    name="Swin-Transformer",
    repository="microsoft/Swin-Transformer",
    commit="f82860bfb5225915aca09c3227159ee9e1df874d",
    trains="fp16, its own scaler class, DDP, mixup, saves the scaler each epoch",
    folder=".",
    command=(
        "torchrun", "--standalone", "--nproc-per-node=1", "main.py",
        "--cfg=configs/swin/swin_tiny_patch4_window7_224.yaml", "--data-path=images",
        "--batch-size=8", "--opts", "MODEL.SWIN.EMBED_DIM", "24", "MODEL.SWIN.DEPTHS", "[1,1]",
        "MODEL.SWIN.NUM_HEADS", "[2,4]", "MODEL.SWIN.WINDOW_SIZE", "4", "DATA.IMG_SIZE", "32",
        "DATA.NUM_WORKERS", "0", "MODEL.NUM_CLASSES", "4", "TRAIN.EPOCHS", "2",
        "TRAIN.WARMUP_EPOCHS", "0", "AUG.AUTO_AUGMENT", "none",
    ),
    make_data=more_images,
    edits=(
        Edit("main.py", "model.cuda()", "pass"),
        Edit("main.py", ".cuda(non_blocking=True)", ""),
        Edit("main.py", "torch.cuda.amp.autocast(", AUTOCAST_ON_CPU),
        Edit("main.py", "torch.cuda.synchronize()", "pass"),
        Edit("main.py", "torch.cuda.set_device(config.LOCAL_RANK)", "pass"),
        Edit("main.py", "backend='nccl'", "backend='gloo'"),
        Edit("main.py", "device_ids=[config.LOCAL_RANK]", "device_ids=None"),
        Edit("utils.py", "torch.cuda.amp.GradScaler()", 'torch.amp.GradScaler("cpu")'),
        Edit("lr_scheduler.py", "t_mul=1.,", ""),
        Edit("config.py", "_C.TRAIN.BASE_LR = 5e-4", "_C.TRAIN.BASE_LR = 5e-2"),
    ),
    broken=(
        Broken(
            "a rate twenty thousand times its own",
            RATE_TOO_HIGH,
            (Edit("config.py", "_C.TRAIN.BASE_LR = 5e-2", "_C.TRAIN.BASE_LR = 1e3"),),
        ),
        Broken(
            "an fc2 overflows in the forward pass",
            ("AMP203",),
            (overflowing("models/swin_transformer.py", "x = self.fc2(x)", after=60),),
            layer="fc2",
        ),
    ),
    times=r"(time|Time) [\d.]+ \([\d.]+\)",
    launcher=True,
)  # fmt: skip

RAFT = Program(
    name="RAFT",
    repository="princeton-vl/RAFT",
    commit="2888e15a51fa41140771d3f498ed8023cff098d1",
    trains="fp16 in parts of its forward, GradScaler, DataParallel, OneCycle, clipping",
    folder=".",
    command=(
        "train.py", "--stage=chairs", "--mixed_precision", "--small", "--gpus", "0",
        "--num_steps=40", "--batch_size=1", "--lr=4e-4", "--image_size", "128", "128",
        "--iters=1", "--validation", "chairs",
    ),
    make_data=flying_chairs,
    edits=(
        Edit("train.py", "from torch.cuda.amp import", "from torch.amp import"),
        Edit("train.py", "GradScaler(enabled=", 'GradScaler("cpu", enabled='),
        Edit("train.py", "model.cuda()", "pass"),
        Edit("train.py", "[x.cuda() for", "[x for"),
        Edit("train.py", "sys.path.append('core')", "sys.path.insert(0, 'core')"),
        Edit("train.py", "SUM_FREQ = 100", "SUM_FREQ = 20"),
        Edit("core/datasets.py", "num_workers=4", "num_workers=0"),
        Edit("core/utils/frame_utils.py", "int(h)", "h.item()"),
        Edit("core/utils/frame_utils.py", "int(w)", "w.item()"),
        Edit(
            "core/raft.py",
            "autocast = torch.cuda.amp.autocast",
            "autocast = lambda enabled: torch.autocast('cpu', torch.float16, enabled)",
        ),
    ),
    broken=(
        Broken("a rate of 10", RATE_TOO_HIGH, arguments=("--lr=10",)),
        Broken(
            "`zero_grad()` left out",
            ("AMP412",),
            (Edit("train.py", "optimizer.zero_grad()", "pass"),),
        ),
    ),
    saved=("checkpoints/*.pth",),
)  # fmt: skip

YOLO_V5 = Program(
    name="YOLOv5",
    repository="ultralytics/yolov5",
    commit="5081342f04fb287fc2e5f2b5a4e06752b7937b1c",
    trains="fp16, GradScaler, accumulation that grows from 1 to 16 in its warm-up, three groups",
    folder=".",
    command=(
        "train.py", "--img=64", "--batch-size=4", "--epochs=3", "--data=tiny.yaml",
        "--cfg=models/yolov5n.yaml", "--weights=", "--workers=0", "--device=cpu", "--noval",
        "--noplots", "--noautoanchor", "--exist-ok", "--project=out", "--name=it",
        "--hyp=data/hyps/hyp.scratch-low.yaml",
    ),
    make_data=boxes,
    edits=(
        Edit("train.py", "amp = check_amp(model)", "amp = True"),
        Edit("train.py", "torch.cuda.amp.GradScaler(", 'torch.amp.GradScaler("cpu", '),
        Edit("train.py", "smart_amp_autocast(amp)", f"{AUTOCAST_ON_CPU}amp)"),
        Edit("train.py", "if not noval or final_epoch:", "if not noval:"),
        Edit("train.py", "if f is best:", "if False:"),
        Edit("models/yolov5n.yaml", "width_multiple: 0.25", "width_multiple: 0.125"),
        Edit("utils/general.py", '    check_font("Arial.ttf" if', '    dict(font="Arial.ttf" if'),
    ),
    broken=(
        Broken(
            "a rate a thousand times its own",
            RATE_TOO_HIGH,
            (Edit("data/hyps/hyp.scratch-low.yaml", "lr0: 0.01", "lr0: 10.0"),),
        ),
        Broken(
            "`zero_grad()` left out",
            ("AMP412",),
            (
                Edit(
                    "train.py",
                    "scaler.update()\n                optimizer.zero_grad()",
                    "scaler.update()",
                ),
            ),
        ),
    ),
    times=r"^.*[━─].*$",
)  # fmt: skip

IMAGENET = Program(
    name="imagenet",
    repository="pytorch/examples",
    commit="77f55b912142e11fcfdf5b530231fb9c52f181e8",
    trains="fp32, SGD with momentum, no scaler, no clipping",
    folder="imagenet",
    command=(
        "main.py", "images", "--arch=resnet18", "--batch-size=8", "--workers=0", "--epochs=1",
        "--seed=1", "--no-accel", "--lr=0.01",
    ),
    make_data=more_images,
    edits=(
        Edit("main.py", "RandomResizedCrop(224)", "RandomResizedCrop(32)"),
        Edit("main.py", "Resize(256)", "Resize(32)"),
        Edit("main.py", "CenterCrop(224)", "CenterCrop(32)"),
    ),
    broken=(
        Broken("a rate of 100", RATE_TOO_HIGH, arguments=("--lr=100",)),
        Broken(
            "one batch divided by 0",
            ("AMP209",),
            (
                Edit(
                    "main.py",
                    "        output = model(images)\n        loss = criterion(output, target)\n\n"
                    "        # measure accuracy",
                    "        output = model(images / (i != 30))\n"
                    "        loss = criterion(output, target)\n\n        # measure accuracy",
                ),
            ),
        ),
    ),
    times=r"(Time|Data) +[\d.]+ \( *[\d.]+\)",
    saved=("imagenet/checkpoint.pth.tar",),
)  # fmt: skip

PROGRAMS = (OPEN_CLIP, TIMM, PYTORCH_UNET, MAE, DINO, SWIN, RAFT, YOLO_V5, IMAGENET)
