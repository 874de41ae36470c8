"""Eight real PyTorch programs: random weights, shapes that vary from step to step.

Each is a function of the device and of `ready`, which it calls once its models are made. It gives
nothing back; what it computes shows in the losses, which `run.py` sums.
"""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F


def detect(dev, ready, note):
    """Faster R-CNN training on images of all sizes."""
    import torchvision

    make = torchvision.models.detection.fasterrcnn_resnet50_fpn
    model = make(weights=None, weights_backbone=None, num_classes=21).to(dev).train()
    opt = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
    ready()
    for _ in range(30):
        images = [
            torch.rand(3, random.randint(300, 700), random.randint(300, 900), device=dev)
            for _ in range(random.randint(1, 4))
        ]
        targets = []
        for _ in images:
            n = random.randint(1, 20)
            x = torch.rand(n, 4, device=dev)
            left, top = x[:, 0] * 200, x[:, 1] * 200
            right, bottom = left + 20 + x[:, 2] * 80, top + 20 + x[:, 3] * 80
            boxes = torch.stack([left, top, right, bottom], 1)
            targets.append(dict(boxes=boxes, labels=torch.randint(1, 21, (n,), device=dev)))
        sum(model(images, targets).values()).backward()
        opt.step()
        opt.zero_grad(set_to_none=True)


class Experts(nn.Module):
    """Attention, then each token through two of sixteen experts."""

    def __init__(self, width, experts):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
                for _ in range(experts)
            ]
        )
        self.attention = nn.MultiheadAttention(width, 16, batch_first=True)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        flat = self.second(x).reshape(-1, x.shape[-1])
        weights, chosen = self.gate(flat).softmax(-1).topk(2, -1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == number)
            if token.numel():
                part = expert(flat[token]) * weights[token, slot, None]
                out = out.index_add(0, token, part.to(out.dtype))
        return x + out.view_as(x)


def moe(dev, ready, note):
    """Mixture-of-experts training; tokens are routed unevenly."""
    model = nn.Sequential(*[Experts(1024, 16) for _ in range(8)]).to(dev)
    opt = torch.optim.AdamW(model.parameters(), 1e-4)
    ready()
    for _ in range(30):
        x = torch.randn(random.randint(2, 16), random.randint(64, 768), 1024, device=dev)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).float().pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)


def llama(dev, ready, note):
    """Serving: KV caches of batches grow by concatenation."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=32000,
    )
    model = LlamaForCausalLM(config).to(dev).half().eval()
    active = []
    ready()
    with torch.no_grad():
        for _ in range(120):
            if len(active) < 10 and random.random() < 0.3:
                batch, length = random.randint(1, 16), random.randint(64, 3000)
                cache = DynamicCache()
                prompt = torch.randint(0, 32000, (batch, length), device=dev)
                out = model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
                left = random.randint(20, 120)
                active.append([cache, left, out.logits[:, -1:].argmax(-1)])
            for sequence in list(active):
                out = model(sequence[2], past_key_values=sequence[0], use_cache=True)
                sequence[2] = out.logits[:, -1:].argmax(-1)
                sequence[1] -= 1
                if sequence[1] <= 0:
                    active.remove(sequence)


def tables(dev, ready, note):
    """Columns of up to 20 million rows: unique, group by, top, sort, join."""
    ready()
    for _ in range(60):
        n = random.randint(2_000_000, 20_000_000)
        key = torch.randint(0, n // 3, (n,), device=dev)
        value = torch.rand(n, device=dev)
        unique, group, count = torch.unique(key, return_inverse=True, return_counts=True)
        total = torch.zeros(unique.numel(), device=dev).scatter_add_(0, group, value)
        mean = total / count
        top = mean.topk(min(100000, mean.numel())).indices
        chosen = torch.isin(key, unique[top])
        joined = value[chosen]
        order = joined.argsort()
        joined = joined[order]
        del group
        m = random.randint(500_000, 8_000_000)
        probe = torch.randint(0, n // 3, (m,), device=dev).sort().values
        at = torch.searchsorted(unique, probe).clamp(max=unique.numel() - 1)
        hit = unique[at] == probe
        pairs = torch.stack([probe[hit].float(), mean[at[hit]]], 1).cumsum(0)
        note(pairs[-1, 0])


def dino(dev, ready, note):
    """A student and a teacher on many crops; the teacher runs on a side stream."""
    import torchvision

    student = torchvision.models.vit_b_16(image_size=224).to(dev)
    teacher = torchvision.models.vit_b_16(image_size=224).to(dev)
    local = torchvision.models.resnet50(weights=None).to(dev)
    opt = torch.optim.AdamW(list(student.parameters()) + list(local.parameters()), 1e-4)
    side = torch.cuda.Stream()
    ready()
    for _ in range(25):
        batch = random.randint(4, 32)
        large = [torch.randn(batch, 3, 224, 224, device=dev) for _ in range(2)]
        sizes = random.choices([96, 112, 128, 160], k=random.randint(2, 6))
        small = [torch.randn(batch, 3, r, r, device=dev) for r in sizes]
        side.wait_stream(torch.cuda.current_stream())
        with (
            torch.cuda.stream(side),
            torch.no_grad(),
            torch.autocast("cuda", torch.bfloat16),
        ):
            taught = [teacher(x).softmax(-1) for x in large]
        with torch.autocast("cuda", torch.bfloat16):
            learnt = [student(x) for x in large] + [local(x) for x in small]
        torch.cuda.current_stream().wait_stream(side)
        for x in taught:
            x.record_stream(torch.cuda.current_stream())
        loss = sum(-(a * o.log_softmax(-1)).sum(-1).mean() for a in taught for o in learnt)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        with torch.no_grad():
            for p, q in zip(teacher.parameters(), student.parameters()):
                p.mul_(0.99).add_(q, alpha=0.01)


def rl(dev, ready, note):
    """Roll-outs of dwindling batches, kept in a replay buffer."""
    policy = nn.Sequential(
        nn.Linear(96, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 13)
    ).to(dev)
    opt = torch.optim.Adam(policy.parameters(), 3e-4)
    kept = []
    ready()
    for _ in range(60):
        n = random.randint(256, 8192)
        state = torch.randn(n, 96, device=dev)
        steps = []
        for _ in range(random.randint(8, 64)):
            with torch.no_grad():
                out = policy(state)
                action = torch.distributions.Normal(out[:, :12], 1).sample()
            alive = torch.rand(state.shape[0], device=dev) > 0.03
            steps.append((state, action, out[:, 12]))
            state = torch.randn(state.shape[0], 96, device=dev)[alive]
            if state.shape[0] == 0:
                break
        kept.append(steps)
        if len(kept) > 12:
            kept.pop(random.randrange(len(kept)))
        chosen = random.sample(kept, min(4, len(kept)))
        states = torch.cat([x[0] for steps in chosen for x in steps])
        actions = torch.cat([x[1] for steps in chosen for x in steps])
        rewards = torch.cat([x[2] for steps in chosen for x in steps])
        size = random.choice([4096, 16384])
        for part in torch.randperm(states.shape[0], device=dev).split(size):
            out = policy(states[part])
            loss = ((out[:, :12] - actions[part]) ** 2).mean()
            loss = loss + ((out[:, 12] - rewards[part]) ** 2).mean()
            loss.backward()
            opt.step()
            opt.zero_grad(set_to_none=True)


def gpt(dev, ready, note):
    """GPT-2 124M training, fp16 autocast, accumulation over two batches of varying length."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_embd=768, n_head=12)).to(dev)
    opt = torch.optim.AdamW(model.parameters(), 1e-4)
    scaler = torch.amp.GradScaler()
    ready()
    for _ in range(40):
        for _ in range(2):
            batch = random.randint(2, 12)
            length = random.choice([random.randint(64, 1024) for _ in range(3)])
            x = torch.randint(0, 50257, (batch, length), device=dev)
            with torch.autocast("cuda", torch.float16):
                loss = model(x, labels=x).loss / 2
            scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)


def resnet(dev, ready, note):
    """ResNet-50 training, fp16 autocast, varying resolution, batches fetched on a side stream."""
    import torchvision

    model = torchvision.models.resnet50().to(dev)
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler()
    side = torch.cuda.Stream()
    fetched = None
    ready()
    for _ in range(40):
        batch, r = random.randint(16, 96), random.choice([128, 160, 192, 224, 256])
        with torch.cuda.stream(side):
            images = torch.randn(batch, 3, r, r).pin_memory().to(dev, non_blocking=True)
            labels = torch.randint(0, 1000, (batch,)).pin_memory().to(dev, non_blocking=True)
        if fetched is not None:
            x, y = fetched
            torch.cuda.current_stream().wait_stream(side)
            x.record_stream(torch.cuda.current_stream())
            y.record_stream(torch.cuda.current_stream())
            with torch.autocast("cuda", torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad(set_to_none=True)
        fetched = (images, labels)


def streams(dev, ready, note):
    """Five streams hand tensors on: fetch, two branches, join, copy out."""
    model = [nn.Linear(512, 512).to(dev) for _ in range(4)]
    fetch, left, right, out = [torch.cuda.Stream() for _ in range(4)]
    main = torch.cuda.current_stream()
    ready()
    sent = []
    for _ in range(400):
        rows = random.randint(256, 16384)
        with torch.cuda.stream(fetch):
            x = torch.randn(rows, 512, device=dev)
        branches = []
        for stream, layers in ((left, model[:2]), (right, model[2:])):
            stream.wait_stream(fetch)
            with torch.cuda.stream(stream), torch.no_grad():
                x.record_stream(stream)
                y = x
                for layer in layers * random.randint(1, 3):
                    y = layer(y).relu()
                branches.append(y[:: random.randint(1, 4)].clone())
        with torch.no_grad():
            for stream, y in zip((left, right), branches):
                main.wait_stream(stream)
                y.record_stream(main)
            joined = torch.cat(branches).softmax(-1)
        out.wait_stream(main)
        with torch.cuda.stream(out):
            joined.record_stream(out)
            sent.append(joined.sum(0).double())
        if len(sent) > random.randint(4, 24):
            column = sent.pop(random.randrange(len(sent)))
            main.wait_stream(out)
            column.record_stream(main)
            note(column.sum())


PROGRAMS = dict(
    gpt=gpt,
    resnet=resnet,
    detect=detect,
    moe=moe,
    llama=llama,
    tables=tables,
    rl=rl,
    dino=dino,
    streams=streams,
)
