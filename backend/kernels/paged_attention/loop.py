"""The loop over pages, in LLVM vector instructions: keys and values are read where they lie.

A page holds 16 slots, the lanes of a vector. For each page and key head: the dot products of two rows
(queries of heads that share the key) with its keys, the softmax so far (Milakov and Gimelshein, 2018), and
the sum of its values in these weights. No compiler may reorder sums: rows do not depend on each other.
"""

from functools import partial

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.numpy_support import carray

from backend.kernels.compiled import inner, next_part, ordered, pointer_to, threaded
from backend.kernels.exponential import emit_exponential, exponential
from backend.kernels.vectors import FLOAT, FLOATS, INT, INTS, LANES, LONG, VECTOR_BYTES, constant, emitted

_CHUNK = 2 * LANES  # elements of a head that are loaded together; a page has as many slots as a vector lanes
_UNSEEN = np.float32(-1e30)  # below every score
_PAIR = range(2)  # two rows, or two vectors

(_COUNTER, _UNITS, _HEADS, _QUERIES, _QUERY_STRIDE, _PAGES, _RESULTS, _NUM_HEADS) = range(8)
(_NUM_KV_HEADS, _HEAD_DIM, _TABLE, _TABLE_WIDTH, _SEQUENCES, _NUM_SEQUENCES, _SEEN, _SINKS) = range(8, 16)
_TO_VALUE = 16
# The words of a job, see in_place.py.

_floats, _integers, _bytes = (pointer_to(kind) for kind in (types.float32, types.int64, types.uint8))


def _order(lanes):
    return ir.Constant(INTS, list(lanes))


def _load_float32(emit, head, element, count):
    """Two vectors of a head's elements from `element` on; `count` are left, beyond them is 0."""
    places = emit.places(emit.moved(head, element, 4), VECTOR_BYTES, 2)
    masks = [emit.first_lanes(count, begin=k * LANES) for k in _PAIR]
    return [emit.read_lanes(*each) for each in zip(places, masks, strict=True)]


def _load_bfloat16(emit, head, element, count):
    """The same of bfloat16, an even number of them: those at even places, then those at odd ones.

    Each is the upper half of a float32.
    """
    mask = emit.first_lanes(emit.lshr(count, LONG(1)))
    words = emit.read_lanes(emit.moved(head, element, 2), mask, INTS)
    halves = emit.shl(words, constant(INTS, 16)), emit.and_(words, constant(INTS, -1 << 16))
    return [emit.bitcast(each, FLOATS) for each in halves]


def _load_bytes(emit, address, count):
    """Two vectors of bytes, of which `count` are left, a multiple of 4."""
    kind = ir.VectorType(INT, _CHUNK // 4)
    words = emit.read_lanes(address, emit.first_lanes(emit.lshr(count, LONG(2)), kind.count), kind)
    found = emit.bitcast(words, ir.VectorType(ir.IntType(8), _CHUNK))
    return [emit.shuffle_vector(found, found, _order(range(k * LANES, k * LANES + LANES))) for k in _PAIR]


def _load_int8(emit, head, element, count):
    """The same of int8, without their scale."""
    parts = _load_bytes(emit, emit.add(head, element), count)
    return [emit.sitofp(emit.sext(part, INTS), FLOATS) for part in parts]


def _load_float8(emit, head, element, count):
    """The same of E4M3, divided by 256: its bits as a float16, whose exponents begin 8 lower."""
    shorts, halves = (ir.VectorType(kind, LANES) for kind in (ir.IntType(16), ir.HalfType()))
    parts = (emit.sext(part, shorts) for part in _load_bytes(emit, emit.add(head, element), count))
    bits = (emit.and_(emit.shl(part, constant(shorts, 7)), constant(shorts, 0xBF80)) for part in parts)
    return [emit.fpext(emit.bitcast(each, halves), FLOATS) for each in bits]


def _read_scales(unit, emit, keys, values, stride, head_dim, scales):
    """Store the scales [2, 16] of a page's keys and values, multiplied by `unit`."""
    for number, head in enumerate((keys, values)):
        words = ir.Constant(INTS, ir.Undefined)
        end = emit.sub(emit.add(head, head_dim), LONG(2))
        for slot, place in enumerate(emit.places(end, stride, LANES)):
            words = emit.insert_element(words, emit.read(place, INT), INT(slot))
        words = emit.and_(words, constant(INTS, -1 << 16))  # the upper half of the last word, as in a float32
        found = emit.fmul(emit.bitcast(words, FLOATS), constant(FLOATS, float(unit)))
        emit.write(found, emit.moved(scales, number, VECTOR_BYTES))


def _sums(emit, vectors):
    """The sums of 8 vectors: lanes i and i + 8 hold two parts of that of vector i."""
    for stride in (1, 2, 4):
        kept = _order(lane - stride + LANES if lane & stride else lane for lane in range(LANES))
        added = _order(lane + LANES if lane & stride else lane + stride for lane in range(LANES))
        vectors = [
            emit.fadd(emit.shuffle_vector(a, b, kept), emit.shuffle_vector(a, b, added))
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


def _score(load, emit, q, size, keys, stride, head_dim, scores):
    """Store scores [2, 8 of 16] = q [2, size bytes] · keys [8, stride bytes]."""
    slots = LANES // 2
    totals = [emit.variables([constant(FLOATS, 0.0)] * slots) for _ in _PAIR]
    with cgutils.for_range_slice(emit, LONG(0), head_dim, LONG(_CHUNK)) as (element, _):
        places = [emit.moved(emit.moved(q, row, size), element, 4) for row in _PAIR]
        factors = [emit.read_row(place, FLOATS, 2) for place in places]
        left = emit.sub(head_dim, element)
        for slot, place in enumerate(emit.places(keys, stride, slots)):
            parts = load(emit, place, element, left)
            for row in _PAIR:
                total = emit.load(totals[row][slot])
                for factor, part in zip(factors[row], parts, strict=True):
                    total = emit.multiply_add(factor, part, total)
                emit.store(total, totals[row][slot])
    for row in _PAIR:
        found = _sums(emit, [emit.load(total) for total in totals[row]])
        masks = (
            ir.Constant(ir.VectorType(INT, slots), [*range(k * slots, k * slots + slots)]) for k in _PAIR
        )
        halves = (emit.shuffle_vector(found, found, mask) for mask in masks)
        emit.write(emit.fadd(*halves), emit.moved(scores, row, VECTOR_BYTES))


def _add_values(load, emit, sums, weights, values, slots, head_dim):
    """Add weights [2, 16] · values [slots] to sums [2]; sums, values: (address, bytes of a row)."""
    with cgutils.for_range_slice(emit, LONG(0), head_dim, LONG(_CHUNK)) as (element, _):
        rows = [emit.moved(row, element, 4) for row in emit.places(*sums, 2)]
        places = [emit.moved(row, k, VECTOR_BYTES) for row in rows for k in _PAIR]
        totals = emit.variables([emit.read(place) for place in places])
        left = emit.sub(head_dim, element)
        with cgutils.for_range(emit, slots) as loop:
            parts = load(emit, *emit.places(*values, 1, loop.index), element, left)
            for i, total in enumerate(totals):
                weight = emit.moved(emit.moved(weights, i // 2, VECTOR_BYTES), loop.index, 4)
                factor = emit.repeated(emit.read(weight, FLOAT))
                emit.store(emit.multiply_add(factor, parts[i % 2], emit.load(total)), total)
        for place, total in zip(places, totals, strict=True):
            emit.write(emit.load(total), place)


@emitted(types.float32)
def _weigh(emit, scores, scales, seen, top, total):
    """Turn 16 scores into weights e^(score - top), 0 where `seen` has no bit; update top and total [16].

    Scores are multiplied by the scales of keys, weights by those of values, [2, 16].
    Returns what sums so far are to be multiplied by, as the highest score has changed.
    """
    is_seen = emit.bitcast(emit.trunc(seen, ir.IntType(LANES)), ir.VectorType(ir.IntType(1), LANES))
    own = emit.fmul(emit.read(scores), emit.read(scales))
    own = emit.select(is_seen, own, constant(FLOATS, float("-inf")))
    highest, before = own, emit.repeated(emit.read(top, FLOAT))
    for stride in (1, 2, 4, 8):
        other = emit.shuffle_vector(highest, highest, _order(i ^ stride for i in range(LANES)))
        highest = emit.select(emit.fcmp_ordered(">", other, highest), other, highest)
    after = emit.select(emit.fcmp_ordered(">", highest, before), highest, before)
    weights, factor = (emit_exponential(emit, emit.fsub(each, after)) for each in (own, before))
    of_values = emit.read(emit.moved(scales, VECTOR_BYTES))
    emit.write(emit.fmul(weights, of_values), scores)
    emit.write(emit.multiply_add(emit.read(total), factor, weights), total)
    emit.write(emit.extract_element(after, INT(0)), top)
    return emit.extract_element(factor, INT(0))


@emitted()
def _prefetch(emit, address, size):
    """Ask for what is read soon, in the order of memory: processors foresee that, but not heads of slots."""
    with cgutils.for_range_slice(emit, LONG(0), size, LONG(64)) as (offset, _):
        line = emit.inttoptr(emit.add(address, offset), INT.as_pointer())
        emit.llvm("prefetch.p0", ir.VoidType(), line, INT(0), INT(2), INT(1))  # to read, second cache, data


@inner
def _seen_slots(first, bits, begin, base, slots):
    """The slots of the page from token `base` on that a query sees, as bits; `begin` is its step's first."""
    low, high = max(begin + first - base, 0), min(max(begin - base, 0), slots)
    before = (1 << high) - (1 << low) if high > low else 0
    own = bits << (begin - base) if begin >= base else bits >> (base - begin)
    return (before | own if begin - base < LANES else before) & ((1 << slots) - 1)


@inner
def _set_seen(seen_slots, seen, group, begin, page, slots):
    """Set what each row sees of a page; nothing of a tree's where others lie between its path's tokens."""
    for row in range(group * len(seen)):
        first, bits, depth = seen[row // group]
        is_apart = depth < row // group and page >= begin // LANES
        seen_slots[row] = 0 if is_apart else _seen_slots(first, bits, begin, page * LANES, slots)


def _page_adder(load, unit):
    """A function that adds a page to all rows of a key head."""
    score, add_values = emitted()(partial(_score, load)), emitted()(partial(_add_values, load))
    read_scales = emitted()(partial(_read_scales, unit))

    def add_page(keys, stride, page, state):
        """`keys` are the addresses of the head's first key and value."""
        (head_dim, slots, seen), (q, sums, tops, totals, scores) = page, state
        size, weights, scales = 4 * q.shape[1], scores[0].ctypes.data, scores[2].ctypes.data
        if unit:
            read_scales(keys[0], keys[1], stride, head_dim, scales)
        for row in range(0, len(q), 2):
            if seen[row] == 0 and seen[row + 1] == 0:
                continue
            for half in range(0, slots, LANES // 2):
                place = keys[0] + half * stride
                score(q[row].ctypes.data, size, place, stride, head_dim, weights + 4 * half)
            for i in range(row, row + 2):
                top, total = tops.ctypes.data + 4 * i, totals.ctypes.data + VECTOR_BYTES * i
                factor = _weigh(weights + (i - row) * VECTOR_BYTES, scales, seen[i], top, total)
                if factor != np.float32(1):
                    sums[i] *= factor
            add_values((sums[row].ctypes.data, size), weights, (keys[1], stride), slots, head_dim)

    add_page.__qualname__ = f"add_page{load.__name__}"
    return ordered(add_page)


def _branch_adder(add_page):
    """A function that adds the pages from a tree's root on to nodes that do not lie beside their parents.

    The path is put where the tokens of a chain lie, so that sums have the order of plain decoding.
    """

    def add_branch(keys, pages, node, page, state):
        """node: (the root's position, what the node sees, its first row and the one after its last)."""
        (first, stride, to_value), (root, (oldest, bits, depth), row, end) = keys, node
        (head_dim, head_bytes, seen_slots), (q, sums, tops, totals, scores) = page, state
        low, path = max(root + oldest, 0), _path(bits, depth)
        memory = np.zeros((LANES, 2, head_bytes), np.uint8)
        seen_slots[:] = 0
        for base in range(max(low, root) // LANES * LANES, root + depth + 1, LANES):
            places = np.arange(base, min(base + LANES, root + depth + 1))
            for slot in range(len(places)):
                if places[slot] >= root:
                    places[slot] = root + path[places[slot] - root]
            hidden = min(max(low - base, 0), len(places))
            seen_slots[row:end] = (1 << len(places)) - (1 << hidden)
            for h in range(len(q)):
                _gather((first + h * head_bytes, stride, to_value), pages, places, head_bytes, memory)
                place = memory.ctypes.data
                own = q[h], sums[h], tops[h], totals[h], scores
                slots = head_dim, len(places), seen_slots
                add_page((place, place + head_bytes), 2 * head_bytes, slots, own)
        return memory[0, 0, 0]  # in use until here

    add_branch.__qualname__ = add_page.__qualname__.replace("page", "branch")
    add_branch = ordered(add_branch)

    def add_branches(keys, pages, tree, page, state):
        root, seen, group = tree
        for query in range(len(seen)):
            oldest, bits, depth = seen[query]
            if depth < query:
                node = root, (oldest, bits, depth), query * group, (query + 1) * group
                add_branch(keys, pages, node, page, state)

    add_branches.__qualname__ = add_page.__qualname__.replace("page", "branches")
    return ordered(add_branches)


@inner
def _sequence(job, number):
    """First token, query tokens, context, pages, and what its queries see."""
    facts = carray(_integers(job[_SEQUENCES]), (5, job[_NUM_SEQUENCES]))
    row, queries, context, table_row, seen_row = facts[:, number]
    pages = carray(_integers(job[_TABLE] + 8 * table_row * job[_TABLE_WIDTH]), job[_TABLE_WIDTH])
    return row, queries, context, pages, carray(_integers(job[_SEEN] + 24 * seen_row), (queries, 3))


@inner
def _path(bits, depth):
    """The step's tokens that these bits name, by depth; 0 where there is none."""
    tokens = np.zeros(depth + 1, np.int64)
    for token in range(63, -1, -1):
        if bits >> token & 1:
            tokens[depth] = token
            depth -= 1
    return tokens


@inner
def _gather(keys, pages, places, head_bytes, memory):
    """Copy tokens' keys and values to memory [16, 2, bytes]; keys: (address, stride, bytes to the value)."""
    first, stride, to_value = keys
    for slot in range(len(places)):
        place = first + (pages[places[slot] // LANES] * LANES + places[slot] % LANES) * stride
        memory[slot, 0] = carray(_bytes(place), head_bytes)
        memory[slot, 1] = carray(_bytes(place + to_value), head_bytes)


@inner
def _copy_head(token, row, is_back, is_split):
    """Copy a head to a row, or back; `is_split`: a chunk of a row has its even elements first."""
    if not is_split:
        if is_back:
            token[:] = row[: len(token)]
        else:
            row[: len(token)] = token
        return
    for chunk in range(0, len(token), _CHUNK):
        for i in range(min(_CHUNK, len(token) - chunk) // 2):
            even, odd = chunk + i, chunk + LANES + i
            if is_back:
                token[chunk + 2 * i], token[chunk + 2 * i + 1] = row[even], row[odd]
            else:
                row[even], row[odd] = token[chunk + 2 * i], token[chunk + 2 * i + 1]


@inner
def _copy_rows(tokens, heads, head_dim, rows, is_back, is_split):
    """Copy tokens to rows [key heads, tokens * query heads, D], or back; heads: (first, group)."""
    first, group = heads
    for h in range(rows.shape[0]):
        for row in range(len(tokens) * group):
            column = ((first + h) * group + row % group) * head_dim
            token = tokens[row // group, column : column + head_dim]
            _copy_head(token, rows[h, row], is_back, is_split)


@inner
def _with_sink(job, head, total, top):
    """The sum of a row's weights, and that of its head's sink where heads have some."""
    if job[_SINKS]:
        return total + exponential(carray(_floats(job[_SINKS]), job[_NUM_HEADS])[head] - top)
    return total


def _attender(load, itemsize, unit=0):
    """A function that attends with all queries of a sequence, in some of the key heads.

    `unit`: what loaded numbers are to be multiplied by beside their scales; 0: they have none.
    """
    add_page, scale_bytes = _page_adder(load, unit), 2 if unit else 0
    add_branches, is_split = _branch_adder(add_page), load is _load_bfloat16

    def attend(job, unit):
        head_dim, kv_heads, parts = job[_HEAD_DIM], job[_NUM_KV_HEADS], -(-job[_NUM_KV_HEADS] // job[_HEADS])
        first, group = (unit % parts) * job[_HEADS], job[_NUM_HEADS] // kv_heads
        heads, to_value = min(job[_HEADS], kv_heads - first), job[_TO_VALUE]
        token, queries, context, pages, seen = _sequence(job, unit // parts)
        used, begin, head_bytes = queries * group, context - queries, head_dim * itemsize + scale_bytes
        rows, stride, padded = (
            used + used % 2,
            kv_heads * head_bytes + to_value,
            -(-head_dim // _CHUNK) * _CHUNK,
        )
        memory, seen_memory = np.zeros((2, heads, rows, padded), np.float32), np.zeros(rows, np.int64)
        more = np.zeros((heads * rows + 4, LANES), np.float32)
        # Slices of addresses count no references, which slices of arrays do, atomically.
        q = carray(_floats(memory.ctypes.data), (heads, rows, padded))
        sums = carray(_floats(memory[1].ctypes.data), (heads, rows, padded))
        totals = carray(_floats(more.ctypes.data), (heads, rows, LANES))
        scores = carray(_floats(more[heads * rows :].ctypes.data), (4, LANES))  # and scales
        scores[:] = 1
        highest = np.full((heads, rows), _UNSEEN)
        tops = carray(_floats(highest.ctypes.data), (heads, rows))
        seen_slots = carray(_integers(seen_memory.ctypes.data), rows)
        tokens = carray(
            _floats(job[_QUERIES] + 4 * token * job[_QUERY_STRIDE]), (queries, job[_QUERY_STRIDE])
        )
        _copy_rows(tokens, (first, group), head_dim, q, False, is_split)
        q *= np.float32(1 / np.sqrt(head_dim))
        page_rows, last = (head_dim, head_bytes, seen_slots), (context - 1) // LANES
        for page in range(max(begin + seen[:, 0].min(), 0) // LANES, last + 1):
            slots = min(LANES, context - page * LANES)
            _set_seen(seen_slots, seen, group, begin, page, slots)
            for h in range(heads):
                for slot in range(h * LANES // heads, (h + 1) * LANES // heads if page < last else 0):
                    key = job[_PAGES] + (pages[page + 1] * LANES + slot) * stride + first * head_bytes
                    _prefetch(key, heads * head_bytes)
                    _prefetch(key + to_value, heads * head_bytes)
                key = job[_PAGES] + pages[page] * LANES * stride + (first + h) * head_bytes
                state = q[h], sums[h], tops[h], totals[h], scores
                add_page((key, key + to_value), stride, (head_dim, slots, seen_slots), state)
        keys = job[_PAGES] + first * head_bytes, stride, to_value
        add_branches(keys, pages, (begin, seen, group), page_rows, (q, sums, tops, totals, scores))
        for h in range(heads):
            for row in range(used):
                total, head = more[h * rows + row].sum(), (first + h) * group + row % group
                memory[1, h, row] *= np.float32(1) / _with_sink(job, head, total, highest[h, row])
        width = job[_NUM_HEADS] * head_dim
        tokens = carray(_floats(job[_RESULTS] + 4 * token * width), (queries, width))
        _copy_rows(tokens, (first, group), head_dim, memory[1], True, is_split)
        return highest[0, 0] + seen_memory[0]  # in use until here

    attend.__qualname__ = f"attend{load.__name__}"
    return ordered(attend)


_attend_float32, _attend_bfloat16 = _attender(_load_float32, 4), _attender(_load_bfloat16, 2)
_attend_int8, _attend_float8 = _attender(_load_int8, 1, 1), _attender(_load_float8, 1, 256)


@inner
def _attend_parts(job, attend):
    unit = next_part(job)
    while unit < job[_UNITS]:
        attend(job, unit)
        unit = next_part(job)


@threaded
def attend_float32(job):
    """Attend over pages of float32."""
    _attend_parts(job, _attend_float32)


@threaded
def attend_bfloat16(job):
    """Attend over pages of bfloat16."""
    _attend_parts(job, _attend_bfloat16)


@threaded
def attend_int8(job):
    """Attend over pages of int8 with scales."""
    _attend_parts(job, _attend_int8)


@threaded
def attend_float8(job):
    """Attend over pages of E4M3 with scales."""
    _attend_parts(job, _attend_float8)
