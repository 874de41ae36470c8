"""Seven programs of kinds that none of the others is, written when the pool was; see more.py.

Nothing in the pool was chosen by them.
"""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F


def nerf(dev, ready, note):
    """Rays through a scene: a grid says which samples count, so each step has as many as come."""
    table = nn.Parameter(torch.randn(1 << 19, 4, device=dev) * 0.01)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).to(dev)
    grid = torch.rand(64, 64, 64, device=dev) < 0.3
    opt = torch.optim.Adam([table, *net.parameters()], 1e-2)
    ready()
    for step in range(150):
        rays = random.choice([2048, 4096, 8192])
        origin = torch.rand(rays, 1, 3, device=dev)
        points = origin + torch.randn(rays, 1, 3, device=dev) * torch.linspace(0, 1, 96, device=dev)[:, None]
        at = (points.frac().abs() * 63.99).long()
        kept = grid[at[..., 0], at[..., 1], at[..., 2]].nonzero()
        found = points[kept[:, 0], kept[:, 1]]
        features = []
        for level in range(4):
            cell = (found * (16 << level)).long()
            key = (cell * torch.tensor([1, 2654435761, 805459861], device=dev)).sum(1) % table.shape[0]
            features.append(table[key])
        out = net(torch.cat(features, 1))
        density = F.softplus(out[:, 3])
        weight = 1 - torch.exp(-density)
        colour = torch.zeros(rays, 3, device=dev).index_add(0, kept[:, 0], weight[:, None] * out[:, :3].sigmoid())
        loss = (colour - 0.5).pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        if step % 25 == 24:
            with torch.no_grad():
                grid = torch.rand(64, 64, 64, device=dev) < 0.15 + 0.1 * (step // 25)


def atoms(dev, ready, note):
    """Molecules in motion: pairs of neighbours are found anew every few steps, as many as there are."""
    count, side, near = 12_000, 24.0, 2.0
    place = torch.rand(count, 3, device=dev) * side
    speed = torch.randn(count, 3, device=dev) * 0.5
    ready()
    for step in range(400):
        if step % 8 == 0:
            found = []
            for first in range(0, count, 2000):
                far = torch.cdist(place[first : first + 2000], place)
                pairs = (far < near + 0.3).nonzero()
                pairs[:, 0] += first
                found.append(pairs[pairs[:, 0] < pairs[:, 1]])
            pairs = torch.cat(found)
        apart = place[pairs[:, 0]] - place[pairs[:, 1]]
        squared = apart.pow(2).sum(1).clamp_min(0.25)
        inside = squared < near * near
        apart, squared, left, right = apart[inside], squared[inside], pairs[inside, 0], pairs[inside, 1]
        push = (squared.pow(-4) - 0.5 * squared.pow(-2))[:, None] * apart
        force = torch.zeros_like(place).index_add(0, left, push).index_add(0, right, -push)
        speed = (speed + 0.002 * force).clamp(-3, 3)
        place = (place + 0.002 * speed) % side
        if step % 8 == 7:
            note(speed.pow(2).mean())


class Hearing(nn.Module):
    def __init__(self, width=256, depth=8):
        super().__init__()
        self.front = nn.Conv1d(80, width, 5, 2, 2)
        layer = lambda: nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList(layer() for _ in range(depth))
        self.near = nn.ModuleList(nn.Conv1d(width, width, 15, 1, 7, groups=width) for _ in range(depth))
        self.out = nn.Linear(width, 96)

    def forward(self, x):
        x = self.front(x).transpose(1, 2)
        for layer, near in zip(self.layers, self.near):
            x = layer(x)
            x = x + F.silu(near(x.transpose(1, 2))).transpose(1, 2)
        return self.out(x)


def speech(dev, ready, note):
    """Speech of all lengths in batches of about as many frames, mixed precision, a loss over alignments."""
    net = Hearing().to(dev)
    opt = torch.optim.AdamW(net.parameters(), 1e-4)
    scaler = torch.amp.GradScaler("cuda")
    ready()
    for _ in range(60):
        frames = random.randint(200, 1800)
        batch = max(2, 24000 // frames)
        x = torch.randn(batch, 80, frames, device=dev)
        x[:, random.randint(0, 60) :][:, :20] = 0
        with torch.autocast("cuda", torch.float16):
            out = net(x)
        steps = out.shape[1]
        said = torch.randint(1, 96, (batch, max(4, steps // 8)), device=dev)
        lengths = torch.full((batch,), steps, device=dev)
        spoken = torch.full((batch,), said.shape[1], device=dev)
        loss = F.ctc_loss(out.float().log_softmax(2).transpose(0, 1), said, lengths, spoken, zero_infinity=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)


def diffuse(dev, ready, note):
    """Pictures from noise in many sizes: steps of a transformer, then a decoder of large activations."""
    width = 768
    layer = lambda: nn.TransformerEncoderLayer(width, 12, 4 * width, 0.0, batch_first=True, norm_first=True)
    body = nn.ModuleList(layer() for _ in range(10)).to(dev).half().eval()
    into, out = nn.Linear(16, width).to(dev).half(), nn.Linear(width, 16).to(dev).half()
    sizes = [(4, 256), (256, 192), (192, 128), (128, 64)]
    up = [m for a, b in sizes for m in (nn.Conv2d(a, b, 3, 1, 1), nn.SiLU(), nn.Upsample(scale_factor=2))]
    decode = nn.Sequential(*up[:-1], nn.Conv2d(64, 3, 3, 1, 1)).to(dev).half().eval()
    ready()
    with torch.no_grad():
        for _ in range(14):
            batch, high, wide = random.randint(1, 4), 8 * random.randint(6, 14), 8 * random.randint(6, 14)
            x = torch.randn(batch, 4, high, wide, device=dev, dtype=torch.half)
            for _ in range(random.choice([8, 12, 20])):
                both = torch.cat([x, x])
                tokens = F.unfold(both, 2, stride=2).transpose(1, 2)
                h = into(tokens)
                for layer in body:
                    h = layer(h)
                noise = F.fold(out(h).transpose(1, 2), (high, wide), 2, stride=2)
                with_text, without = noise.chunk(2)
                x = x - 0.05 * (without + 4 * (with_text - without))
            x = x / (x.float().std() + 1e-3).half()
            note(decode(x).float().mean())


def draft(dev, ready, note):
    """A small model proposes tokens and a large one checks them: caches grow, and are cut back."""
    wide = {"small": (512, 4), "large": (2048, 12)}

    def model(width, depth):
        w = lambda a, b: (torch.randn(a, b, device=dev) * a**-0.5).half()
        return [(w(width, 3 * width), w(width, width), w(width, 4 * width), w(4 * width, width)) for _ in range(depth)]

    models = {name: model(*shape) for name, shape in wide.items()}
    ready()

    def forward(name, x, caches):
        width, _ = wide[name]
        for at, (qkv, out, up, down) in enumerate(models[name]):
            n, t, _ = x.shape
            q, k, v = (F.layer_norm(x, (width,)) @ qkv).view(n, t, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
            if caches[at] is not None:
                k, v = torch.cat([caches[at][0], k], 2), torch.cat([caches[at][1], v], 2)
            caches[at] = (k, v)
            x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, width) @ out
            x = x + F.gelu(F.layer_norm(x, (width,)) @ up) @ down
        return x

    with torch.no_grad():
        for _ in range(6):
            n, start = random.randint(2, 12), random.randint(64, 900)
            caches = {name: [None] * depth for name, (_, depth) in wide.items()}
            for name in wide:
                forward(name, torch.randn(n, start, wide[name][0], device=dev, dtype=torch.half), caches[name])
            length = start
            for _ in range(24):
                x = torch.randn(n, 1, wide["small"][0], device=dev, dtype=torch.half)
                for _ in range(5):
                    x = forward("small", x, caches["small"])
                large = torch.randn(n, 5, wide["large"][0], device=dev, dtype=torch.half)
                y = forward("large", large, caches["large"])
                length += random.randint(1, 5)
                for kept in caches.values():
                    kept[:] = [(k[:, :, :length].contiguous(), v[:, :, :length].contiguous()) for k, v in kept]
            note(y.float().mean())


def nearest(dev, ready, note):
    """Vectors are clustered, then lists of the nearest clusters are searched for queries, in parts."""
    vectors = torch.randn(600_000, 96, device=dev)
    ready()
    centres = vectors[torch.randperm(len(vectors), device=dev)[:2048]]
    for _ in range(6):
        parts = []
        for part in vectors.split(random.randint(20_000, 60_000)):
            parts.append(torch.cdist(part, centres).argmin(1))
        owner = torch.cat(parts)
        counts = torch.bincount(owner, minlength=2048).clamp_min(1)
        centres = torch.zeros_like(centres).index_add(0, owner, vectors) / counts[:, None]
        note(centres.pow(2).mean())
    order = owner.argsort()
    ends = torch.bincount(owner, minlength=2048).cumsum(0).tolist()
    for _ in range(60):
        queries = torch.randn(random.randint(16, 400), 96, device=dev)
        lists = torch.cdist(queries, centres).topk(8, largest=False).indices
        wanted = lists.unique().tolist()
        rows = torch.cat([order[(ends[at - 1] if at else 0) : ends[at]] for at in wanted[:600]])
        best, at = torch.cdist(queries, vectors[rows]).topk(10, largest=False)
        note(best.mean() + rows[at].float().mean() * 0)


def guests(dev, ready, note):
    """Models that come and go: each is loaded, answers a few requests, and leaves."""
    kept = []
    ready()
    with torch.no_grad():
        for turn in range(40):
            width, depth = random.choice([(768, 8), (1024, 12), (1536, 8), (2048, 6)])
            w = lambda a, b: (torch.randn(a, b, device=dev) * a**-0.5).half()
            kept.append((width, [(w(width, 4 * width), w(4 * width, width)) for _ in range(depth)]))
            if len(kept) > 4:
                kept.pop(random.randrange(4))
            for _ in range(12):
                width, layers = random.choice(kept)
                x = torch.randn(random.randint(100, 6000), width, device=dev, dtype=torch.half)
                for up, down in layers:
                    x = x + F.gelu(F.layer_norm(x, (width,)) @ up) @ down
            note(x.float().mean())


FURTHER = dict(
    nerf=nerf, atoms=atoms, speech=speech, diffuse=diffuse, draft=draft, nearest=nearest, guests=guests
)
