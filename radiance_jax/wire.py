"""What travels between ranks, as data: which wire carries a message, and how many bytes it sends. No jax in here.

| wire | ranks | bits an element | hops |
|---|---|---|---|
| one-shot, remote | any | the payload's own | 1, the whole message to each peer |
| two-shot | any | the payload's own | 2, a share of 1/W each |
| wht6 | 2 | 6.25 | 1 |
| tiered | 3, 4 | 9.5 | 2 |
"""

from dataclasses import dataclass

from radiance_jax.errors import UserError

NAMES = ("exact", "wht6")
ONE_SHOT, TWO_SHOT, REMOTE, WHT6, TIERED = "one-shot", "two-shot", "remote", "wht6", "tiered"
LOSSY_FORMS = {2: WHT6, 3: TIERED, 4: TIERED}  # what `wht6` means, by ranks
GROUPS = {WHT6: 64, TIERED: 32}  # elements that share a scale
GROUP_BYTES = {WHT6: 50, TIERED: 38}

# What a hop more costs inside one program, and how fast a long message travels: two H200, XLA's collectives.
HOP_SECONDS, LINK_BYTES_PER_SECOND = 25e-6, 200e9

# Messages of at most so many bytes take the remote-write kernel, by ranks, where it can be had; ranks that are not here: none.
# From `bench wires` on the machine; an entry is made only from a measurement in docs/measurements/.
REMOTE_BYTES: dict[int, int] = {}


@dataclass(frozen=True, kw_only=True)
class Wire:
    """`name` as the flag has it; a lossy wire carries messages of at least `least_bytes`, others go exactly. Exact
    messages of at most `remote_bytes` take the remote-write kernel (0: never); that changes no bit."""

    name: str = "exact"
    least_bytes: int = 128 << 10
    remote_bytes: int = 0

    def form(self, size: int, itemsize: int, ranks: int) -> str:
        """How a message of `size` elements of `itemsize` bytes is summed over `ranks`."""
        lossy = LOSSY_FORMS.get(ranks) if self.name != "exact" else None
        if lossy and itemsize == 2 and size % GROUPS[lossy] == 0 and size * itemsize >= self.least_bytes:
            return lossy
        if size * itemsize <= self.remote_bytes:
            return REMOTE
        return TWO_SHOT if size * itemsize >= two_shot_from(ranks) else ONE_SHOT

    def exact_rows(self, width: int) -> int:
        """The most rows of `width` 2-byte elements that are below `least_bytes`."""
        return max(-(-self.least_bytes // (2 * width)) - 1, 0)


EXACT = Wire()


def two_shot_from(ranks: int) -> float:
    """Bytes from which the two-shot form is the faster: what it saves, (W-1) - 2(W-1)/W messages, pays for its second hop.
    With two ranks it saves nothing. The bits are the same on either side."""
    saved = (ranks - 1) - 2 * (ranks - 1) / ranks
    return HOP_SECONDS * LINK_BYTES_PER_SECOND / saved if saved > 0 else float("inf")


def bytes_sent(form: str, size: int, itemsize: int, ranks: int) -> int:
    """Bytes one rank sends for a message of `size` elements, padding included."""
    share = -(-size // ranks)
    if form == TWO_SHOT:
        return 2 * (ranks - 1) * share * itemsize
    if form == WHT6:
        return (ranks - 1) * -(-size // GROUPS[WHT6]) * GROUP_BYTES[WHT6]
    if form == TIERED:
        return 2 * (ranks - 1) * -(-size // (ranks * GROUPS[TIERED])) * GROUP_BYTES[TIERED]
    return (ranks - 1) * size * itemsize


def check_wire(name: str, ranks: int, *, bit_exact: str, dtype: str) -> None:
    """Refuses a lossy wire that cannot be had. Raises `UserError`."""
    if name == "exact" or ranks == 1:
        return
    if bit_exact == "on":
        raise UserError(f"tp_wire must be exact with bit_exact=on; got {name!r}. What a lossy wire rounds off depends on the "
                        "rows that share a message, so answers would depend on drafting and batch mates. Use --tp-wire exact, "
                        "or --bit-exact off.", param="tp_wire")
    if ranks not in LOSSY_FORMS:
        raise UserError(f"tp_wire={name} is made for 2, 3 and 4 ranks; got tp={ranks}. There is no lossy form for that many. "
                        "Use --tp-wire exact.", param="tp_wire")
    if dtype == "f32":
        raise UserError(f"tp_wire={name} carries bf16; got dtype=f32, of which it would keep 6 to 9 bits. Use --tp-wire exact, "
                        "or --dtype bf16.", param="tp_wire")


def describe(wire: Wire, ranks: int, width: int, programs: tuple[int, ...]) -> str:
    """The start-up line. `programs`: row counts of the step programs, ascending; a message has all rows of its program."""
    edge = two_shot_from(ranks)
    exact = "wire: exact; sums in rank order, rounded once" + (
        "" if edge == float("inf") else f"; one-shot below {edge / 2**20:.1f} MiB, two-shot from there, with the same bits")
    if wire.remote_bytes:
        exact += f"; remote writes up to {wire.remote_bytes >> 10} KiB"
    if wire.name == "exact":
        return exact
    form, rows = LOSSY_FORMS[ranks], wire.exact_rows(width)
    bits = 8 * GROUP_BYTES[form] / GROUPS[form]
    lossy = [n for n in programs if wire.form(n * width, 2, ranks) == form]
    which = f"of the step programs those of {', '.join(map(str, lossy))} rows" if lossy else "no step program has so many"
    return (f"wire: {wire.name} ({form}, {bits:g} bits an element), LOSSY from {wire.least_bytes >> 10} KiB on: decoding is "
            f"lossy above {rows} rows ({which}); there on and off may differ. Embeddings are always exact")
