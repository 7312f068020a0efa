"""What the wires must compute, in NumPy: written from the formulas, not from the device code. Messages are [W, n] arrays of
one rank each, of bf16 unless said otherwise; every function gives the sum that all ranks must hold, bit for bit."""

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16


def exact(parts: np.ndarray) -> np.ndarray:
    """f32 sum in ascending rank order, rounded once. Any dtype."""
    total = parts[0].astype(np.float32)
    for part in parts[1:]:
        total += part.astype(np.float32)
    return total.astype(parts.dtype)


def hadamard(x: np.ndarray) -> np.ndarray:
    """The transform by its definition on halves, H [a; b] = [Ha + Hb; Ha - Hb], in f32, without a scale."""
    if x.shape[-1] == 1:
        return x
    left, right = (hadamard(half) for half in np.split(x, 2, axis=-1))
    return np.concatenate([left + right, left - right], axis=-1)


def wht6(parts: np.ndarray) -> np.ndarray:
    """Two ranks: codes of six bits in the rotated domain, one rotation back."""
    total = np.float32(0)
    for part in parts:
        u = hadamard(part.reshape(-1, 64).astype(np.float32)) / np.float32(8)
        a = np.abs(u).max(axis=-1, keepdims=True)
        s = np.where(a < 2.0**-100, 1, (a / np.float32(31)).astype(BF16).astype(np.float32))
        q = np.clip(np.rint(u / s), -32, 31).astype(int).astype(np.float32)
        total = total + q * s
    return (hadamard(total) / np.float32(8)).astype(BF16).reshape(-1)


def int8_tiers(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What comes out of sending bf16 [G, 32] as tiered int8, f32 [G, 32], and the tier of each group."""
    wide = v.astype(np.float32)
    out, tiers = np.zeros_like(wide), np.zeros(len(v), int)
    for g, row in enumerate(wide):
        size = np.abs(row).astype(np.float64)
        k = int(size.argmax())
        m1, m2 = size[k], np.delete(size, k).max()
        floor = np.sqrt((np.delete(size, k) ** 2).sum() / 31) / 96
        least = size[(size >= floor) & (size > 0)].min(initial=np.inf)
        tiers[g] = tier = 0 if m1 <= 253 * least else 1 if m2 <= 253 * least else 2
        x = hadamard(row) * np.float32(32**-0.5) if tier == 2 else row
        amax = np.float32((m1, m2, np.abs(x).max())[tier])
        s = np.float32((amax / np.float32(127)).astype(np.float16))
        if s == 0:
            continue
        back = np.clip(np.rint(x / s), -127, 127).astype(int).astype(np.float32) * s
        if tier == 2:
            back = hadamard(back) * np.float32(32**-0.5)
        if tier == 1:
            back[k] = row[k]
        out[g] = back
    return out, tiers


def tiered(parts: np.ndarray) -> np.ndarray:
    """Three or four ranks: share s belongs to rank s, which adds its own part as it is to what the others sent."""
    ranks, size = parts.shape
    share = -(-size // (32 * ranks)) * 32
    padded = np.zeros((ranks, ranks * share), BF16)
    padded[:, :size] = parts
    whole = []
    for owner in range(ranks):
        mine = padded[:, owner * share:(owner + 1) * share]
        total = np.float32(0)
        for rank, part in enumerate(mine):
            seen = part.astype(np.float32) if rank == owner else int8_tiers(part.reshape(-1, 32))[0].reshape(-1)
            total = seen if rank == 0 else total + seen
        whole.append(int8_tiers(total.astype(BF16).reshape(-1, 32))[0].astype(BF16).reshape(-1))
    return np.concatenate(whole)[:size]


def relative_error(got: np.ndarray, parts: np.ndarray) -> float:
    """Against the sum in f64: the norm of the difference over the norm of the sum."""
    true = parts.astype(np.float64).sum(axis=0)
    return float(np.linalg.norm(got.astype(np.float64) - true) / np.linalg.norm(true))


def inputs(kind: str, ranks: int, size: int, seed: int = 0) -> np.ndarray:
    """bf16 [W, n]: gaussian; heavy (Student's t of 3 degrees); outlier (every 4096th element 100 times as large)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_t(3, (ranks, size)) if kind == "heavy" else rng.standard_normal((ranks, size))
    if kind == "outlier":
        x[:, 17::4096] *= 100
    return x.astype(BF16)


KINDS = ("gaussian", "heavy", "outlier")
