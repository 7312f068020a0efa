"""Which tiles a product takes: a rule, after what `bench kernels` measured on an H200.

Tiles change the speed and not a bit, so that the rule may be wrong without harm. At 64 rows and fewer the weight's
bytes are the floor, so columns are as narrow as gives at most one thread block per multiprocessor, stages are 128 deep and the
pipeline as long as shared memory allows; at more rows, as wide as the registers hold, in as few waves as there can be.
"""

from radiance_jax.pallas.mosaic import ROWS
from radiance_jax.pallas.product import WIDEST, Tile

MULTIPROCESSORS = 132
SHARED_MEMORY = 220 * 1024
NARROWEST = 32  # bytes of a row that shared memory can swizzle
FEWEST_STAGES = 3  # one is loaded, one is ready, one is multiplied
MOST_STAGES = 24


def choose(rows: int, k: int, n: int, *, gated: bool = False, out_bytes: int = 2) -> Tile:
    """The tile of a product of `rows` rows, K x N (N counts one of the two halves if gated)."""
    parts = 2 if gated else 1
    least = NARROWEST // out_bytes
    fits = [c for c in range(least, WIDEST // parts + 1, least) if n % c == 0]
    if not fits or k % 64:
        raise ValueError(f"no tile fits a product of {k} x {n}: K must be a multiple of 64 and N of {least}")
    if rows <= ROWS:
        # At more rows every thread block reads more of x, so that fewer and wider ones are better.
        least = 64 if rows > 16 and n // 64 >= MULTIPROCESSORS // 3 else 8
        one_wave = [c for c in fits if n // c <= MULTIPROCESSORS and c >= least]
        columns = one_wave[0] if one_wave else max(c for c in fits if c <= max(128 // parts, fits[0]))
        order = [c for c in reversed(fits) if c <= columns]
        depth, warpgroups = 128 if k % 128 == 0 else 64, 1
    else:
        tiles = rows // (2 * ROWS)
        order = sorted(fits, key=lambda c: (-(-tiles * n // c // MULTIPROCESSORS) * (c + 16), -c))
        depth, warpgroups = 64, 2
    found = (_deepest(Tile(columns=c, depth=depth, warpgroups=warpgroups), rows, k, parts, out_bytes) for c in order)
    return next(tile for tile in found if tile is not None)


def _deepest(tile: Tile, rows: int, k: int, parts: int, out_bytes: int) -> Tile | None:
    """The tile with as many stages as fit shared memory; None where they are too few."""
    steps = k // tile.depth
    for stages in range(min(MOST_STAGES, steps), min(FEWEST_STAGES, steps) - 1, -1):
        deeper = Tile(columns=tile.columns, depth=tile.depth, stages=stages, warpgroups=tile.warpgroups)
        if deeper.shared_memory(rows, parts, out_bytes) <= SHARED_MEMORY:
            return deeper
    return None
