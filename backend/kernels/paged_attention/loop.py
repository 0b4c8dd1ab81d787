"""The loop over pages, in LLVM vector instructions: keys and values are read where they lie.

A page holds 16 slots, the lanes of a vector. For each page and key head: the dot products of two rows
(queries of heads that share the key) with its keys, the softmax so far (Milakov and Gimelshein, 2018), and
the sum of its values in these weights. No compiler may reorder sums: rows do not depend on each other.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.numpy_support import carray

from backend.kernels.compiled import inner, intrinsic, next_part, ordered, pointer_to, threaded
from backend.kernels.exponential import emit_exponential

_LANES = 16  # floats of a vector, and slots of a page
_VECTOR, _CHUNK = 4 * _LANES, 2 * _LANES  # bytes of a vector; elements of a head that are loaded together
_UNSEEN = np.float32(-1e30)  # below every score

_FLOAT, _INT, _LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_FLOATS, _INTS = ir.VectorType(_FLOAT, _LANES), ir.VectorType(_INT, _LANES)
_PAIR = range(2)  # two rows, or two vectors

(_COUNTER, _UNITS, _HEADS, _QUERIES, _QUERY_STRIDE, _PAGES, _RESULTS, _NUM_HEADS) = range(8)
(_NUM_KV_HEADS, _HEAD_DIM, _TABLE, _TABLE_WIDTH, _SEQUENCES, _NUM_SEQUENCES, _SEEN) = range(8, 15)
# The words of a job, see in_place.py.


_floats, _integers = pointer_to(types.float32), pointer_to(types.int64)


def _constants(values):
    return ir.Constant(_INTS, list(values))


def _repeated(builder, value, lanes=_LANES):
    """A vector with the value in all lanes."""
    nothing = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    first = builder.insert_element(nothing, value, _INT(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_INT, lanes), None))


def _moved(builder, address, count, size=1):
    """address + count * size; `count` and `size` are numbers or values."""
    count, size = (_LONG(each) if isinstance(each, int) else each for each in (count, size))
    return builder.add(address, builder.mul(count, size))


def _load(builder, address, kind=_FLOATS):
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


def _store(builder, values, address):
    builder.store(values, builder.inttoptr(address, values.type.as_pointer()), align=4)


def _multiply_add(builder, a, b, c):
    kind = ir.FunctionType(a.type, [a.type] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.v16f32"), [a, b, c])


def _words(builder, address, count, lanes=_LANES):
    """The first `count` of the words of 32 bits there; the others are 0 and are not read."""
    words = ir.VectorType(_INT, lanes)
    number = _repeated(builder, builder.trunc(count, _INT), lanes)
    mask = builder.icmp_signed("<", ir.Constant(words, list(range(lanes))), number)
    pointer = builder.inttoptr(address, words.as_pointer())
    arguments = [pointer, _INT(2), mask, ir.Constant(words, None)]
    kind = ir.FunctionType(words, [each.type for each in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.load.v{lanes}i32.p0")
    return builder.call(function, arguments)


def _load_float32(builder, head, element, count):
    """Two vectors of a head's elements from `element` on; `count` are left, beyond them is 0."""
    address = _moved(builder, head, element, 4)
    words = _words(builder, address, count)
    more = _words(builder, _moved(builder, address, _VECTOR), builder.sub(count, _LONG(_LANES)))
    return [builder.bitcast(each, _FLOATS) for each in (words, more)]


def _load_bfloat16(builder, head, element, count):
    """The same of bfloat16, an even number of them: those at even places, then those at odd ones.

    Each is the upper half of a float32.
    """
    words = _words(builder, _moved(builder, head, element, 2), builder.lshr(count, _LONG(1)))
    even = builder.shl(words, _constants([16] * _LANES))
    odd = builder.and_(words, _constants([-1 << 16] * _LANES))
    return [builder.bitcast(each, _FLOATS) for each in (even, odd)]


def _bytes(builder, address, count):
    """Two vectors of bytes, of which `count` are left, a multiple of 4."""
    words = _words(builder, address, builder.lshr(count, _LONG(2)), _CHUNK // 4)
    found = builder.bitcast(words, ir.VectorType(ir.IntType(8), _CHUNK))
    places = (range(begin, begin + _LANES) for begin in (0, _LANES))
    return [builder.shuffle_vector(found, found, _constants(lanes)) for lanes in places]


def _load_int8(builder, head, element, count):
    """The same of int8, without their scale."""
    parts = _bytes(builder, builder.add(head, element), count)
    return [builder.sitofp(builder.sext(part, _INTS), _FLOATS) for part in parts]


def _load_float8(builder, head, element, count):
    """The same of E4M3, divided by 256: its bits as a float16, whose exponents begin 8 lower."""
    shorts, halves = (ir.VectorType(kind, _LANES) for kind in (ir.IntType(16), ir.HalfType()))
    shift, kept = (ir.Constant(shorts, [bits] * _LANES) for bits in (7, 0xBF80))
    parts = (builder.sext(part, shorts) for part in _bytes(builder, builder.add(head, element), count))
    bits = (builder.and_(builder.shl(part, shift), kept) for part in parts)
    return [builder.fpext(builder.bitcast(each, halves), _FLOATS) for each in bits]


def _scale_reader(unit):
    """A function that stores the scales [2, 16] of a page's keys and values, multiplied by `unit`."""

    @intrinsic
    def read_scales(typing, keys, values, stride, head_dim, scales):
        def generate(context, builder, signature, arguments):
            keys, values, stride, head_dim, scales = arguments
            for number, head in enumerate((keys, values)):
                words = ir.Constant(_INTS, ir.Undefined)
                for slot in range(_LANES):  # the upper half of its last word, as in a float32
                    end = _moved(builder, builder.add(head, head_dim), slot, stride)
                    pointer = builder.inttoptr(builder.sub(end, _LONG(2)), _INT.as_pointer())
                    words = builder.insert_element(words, builder.load(pointer, align=2), _INT(slot))
                words = builder.and_(words, _constants([-1 << 16] * _LANES))
                units = ir.Constant(_FLOATS, [float(unit)] * _LANES)
                found = builder.fmul(builder.bitcast(words, _FLOATS), units)
                _store(builder, found, _moved(builder, scales, number, _VECTOR))
            return context.get_dummy_value()

        return types.void(keys, values, stride, head_dim, scales), generate

    return read_scales


def _variables(builder, values):
    """Variables that hold the values at first."""
    found = [cgutils.alloca_once(builder, value.type) for value in values]
    for value, variable in zip(values, found, strict=True):
        builder.store(value, variable)
    return found


def _sums(builder, vectors):
    """The sums of 8 vectors: lanes i and i + 8 hold two parts of that of vector i."""
    for stride in (1, 2, 4):
        kept = _constants(lane - stride + _LANES if lane & stride else lane for lane in range(_LANES))
        added = _constants(lane + _LANES if lane & stride else lane + stride for lane in range(_LANES))
        vectors = [
            builder.fadd(builder.shuffle_vector(a, b, kept), builder.shuffle_vector(a, b, added))
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


def _scorer(load):
    """A function that stores scores [2, 8 of 16] = q [2, size bytes] · keys [8, stride bytes]."""

    @intrinsic
    def score(typing, q, size, keys, stride, head_dim, scores):
        def generate(context, builder, signature, arguments):
            q, size, keys, stride, head_dim, scores = arguments
            slots = range(_LANES // 2)
            totals = [_variables(builder, [ir.Constant(_FLOATS, None) for _ in slots]) for _ in _PAIR]
            with cgutils.for_range_slice(builder, _LONG(0), head_dim, _LONG(_CHUNK)) as (element, _):
                places = [_moved(builder, _moved(builder, q, row, size), element, 4) for row in _PAIR]
                factors = [
                    [_load(builder, _moved(builder, place, k, _VECTOR)) for k in _PAIR] for place in places
                ]
                left = builder.sub(head_dim, element)
                for slot in slots:
                    parts = load(builder, _moved(builder, keys, slot, stride), element, left)
                    for row in _PAIR:
                        total = builder.load(totals[row][slot])
                        for factor, part in zip(factors[row], parts, strict=True):
                            total = _multiply_add(builder, factor, part, total)
                        builder.store(total, totals[row][slot])
            low, high = (
                ir.Constant(ir.VectorType(_INT, len(slots)), [begin + slot for slot in slots])
                for begin in (0, len(slots))
            )
            for row in _PAIR:
                found = _sums(builder, [builder.load(total) for total in totals[row]])
                halves = (builder.shuffle_vector(found, found, half) for half in (low, high))
                _store(builder, builder.fadd(*halves), _moved(builder, scores, row, _VECTOR))
            return context.get_dummy_value()

        return types.void(q, size, keys, stride, head_dim, scores), generate

    return score


def _value_adder(load):
    """A function that adds weights [2, 16] · values [slots, stride bytes] to sums [2, size bytes]."""

    @intrinsic
    def add_values(typing, sums, size, weights, values, stride, slots, head_dim):
        def generate(context, builder, signature, arguments):
            sums, size, weights, values, stride, slots, head_dim = arguments
            with cgutils.for_range_slice(builder, _LONG(0), head_dim, _LONG(_CHUNK)) as (element, _):
                rows = [_moved(builder, _moved(builder, sums, row, size), element, 4) for row in _PAIR]
                places = [_moved(builder, row, k, _VECTOR) for row in rows for k in _PAIR]
                totals = _variables(builder, [_load(builder, place) for place in places])
                left = builder.sub(head_dim, element)
                with cgutils.for_range(builder, slots) as loop:
                    parts = load(builder, _moved(builder, values, loop.index, stride), element, left)
                    for i, total in enumerate(totals):
                        weight = _moved(builder, _moved(builder, weights, i // 2, _VECTOR), loop.index, 4)
                        factor = _repeated(builder, _load(builder, weight, _FLOAT))
                        added = _multiply_add(builder, factor, parts[i % 2], builder.load(total))
                        builder.store(added, total)
                for place, total in zip(places, totals, strict=True):
                    _store(builder, builder.load(total), place)
            return context.get_dummy_value()

        return types.void(sums, size, weights, values, stride, slots, head_dim), generate

    return add_values


@intrinsic
def _weigh(typing, scores, scales, seen, top, total):
    """Turn 16 scores into weights e^(score - top), 0 where `seen` has no bit; update top and total [16].

    Scores are multiplied by the scales of keys, weights by those of values, [2, 16].
    Returns what sums so far are to be multiplied by, as the highest score has changed.
    """

    def generate(context, builder, signature, arguments):
        scores, scales, seen, top, total = arguments
        is_seen = builder.bitcast(
            builder.trunc(seen, ir.IntType(_LANES)), ir.VectorType(ir.IntType(1), _LANES)
        )
        own = builder.fmul(_load(builder, scores), _load(builder, scales))
        own = builder.select(is_seen, own, ir.Constant(_FLOATS, [float("-inf")] * _LANES))
        highest, before = own, _repeated(builder, _load(builder, top, _FLOAT))
        for stride in (1, 2, 4, 8):
            other = builder.shuffle_vector(highest, highest, _constants(i ^ stride for i in range(_LANES)))
            highest = builder.select(builder.fcmp_ordered(">", other, highest), other, highest)
        after = builder.select(builder.fcmp_ordered(">", highest, before), highest, before)
        weights, factor = (emit_exponential(builder, builder.fsub(each, after)) for each in (own, before))
        of_values = _load(builder, _moved(builder, scales, _VECTOR))
        _store(builder, builder.fmul(weights, of_values), scores)
        _store(builder, _multiply_add(builder, _load(builder, total), factor, weights), total)
        _store(builder, builder.extract_element(after, _INT(0)), top)
        return builder.extract_element(factor, _INT(0))

    return types.float32(scores, scales, seen, top, total), generate


@intrinsic
def _prefetch(typing, address, size):
    """Ask for what is read soon, in the order of memory: processors foresee that, but not heads of slots."""

    def generate(context, builder, signature, arguments):
        with cgutils.for_range_slice(builder, _LONG(0), arguments[1], _LONG(64)) as (offset, _):
            line = builder.inttoptr(builder.add(arguments[0], offset), _INT.as_pointer())
            asked = [line, _INT(0), _INT(2), _INT(1)]  # to read, into the second cache, data
            kind = ir.FunctionType(ir.VoidType(), [each.type for each in asked])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0"), asked)
        return context.get_dummy_value()

    return types.void(address, size), generate


@inner
def _seen_slots(first, bits, begin, base, slots):
    """The slots of the page from token `base` on that a query sees, as bits; `begin` is its step's first."""
    low, high = max(begin + first - base, 0), min(max(begin - base, 0), slots)
    before = (1 << high) - (1 << low) if high > low else 0
    own = bits << (begin - base) if begin >= base else bits >> (base - begin)
    return (before | own if begin - base < _LANES else before) & ((1 << slots) - 1)


def _page_adder(load, unit):
    """A function that adds a page to all rows of a key head."""
    score, add_values, read_scales = _scorer(load), _value_adder(load), _scale_reader(unit)

    def add_page(keys, stride, page, state):
        """`keys` are the addresses of the head's first key and value."""
        (head_dim, slots, seen), (q, sums, tops, totals, scores) = page, state
        size, weights, scales = 4 * q.shape[1], scores[0].ctypes.data, scores[2].ctypes.data
        if unit:
            read_scales(keys[0], keys[1], stride, head_dim, scales)
        for row in range(0, len(q), 2):
            if seen[row] == 0 and seen[row + 1] == 0:
                continue
            for half in range(0, slots, _LANES // 2):
                place = keys[0] + half * stride
                score(q[row].ctypes.data, size, place, stride, head_dim, weights + 4 * half)
            for i in range(row, row + 2):
                top, total = tops.ctypes.data + 4 * i, totals.ctypes.data + _VECTOR * i
                factor = _weigh(weights + (i - row) * _VECTOR, scales, seen[i], top, total)
                if factor != np.float32(1):
                    sums[i] *= factor
            add_values(sums[row].ctypes.data, size, weights, keys[1], stride, slots, head_dim)

    add_page.__qualname__ = f"add_page{load.__name__}"
    return ordered(add_page)


@inner
def _sequence(job, number):
    """First token, query tokens, context, pages, and what its queries see."""
    facts = carray(_integers(job[_SEQUENCES]), (5, job[_NUM_SEQUENCES]))
    row, queries, context, table_row, seen_row = facts[:, number]
    pages = carray(_integers(job[_TABLE] + 8 * table_row * job[_TABLE_WIDTH]), job[_TABLE_WIDTH])
    return row, queries, context, pages, carray(_integers(job[_SEEN] + 16 * seen_row), (queries, 2))


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
            even, odd = chunk + i, chunk + _LANES + i
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


def _attender(load, itemsize, unit=0):
    """A function that attends with all queries of a sequence, in some of the key heads.

    `unit`: what loaded numbers are to be multiplied by beside their scales; 0: they have none.
    """
    add_page, scale_bytes = _page_adder(load, unit), 2 if unit else 0
    is_split = load is _load_bfloat16

    def attend(job, unit):
        head_dim, kv_heads, parts = job[_HEAD_DIM], job[_NUM_KV_HEADS], -(-job[_NUM_KV_HEADS] // job[_HEADS])
        first, group = (unit % parts) * job[_HEADS], job[_NUM_HEADS] // kv_heads
        heads = min(job[_HEADS], kv_heads - first)
        token, queries, context, pages, seen = _sequence(job, unit // parts)
        used, begin, head_bytes = queries * group, context - queries, head_dim * itemsize + scale_bytes
        rows, stride = used + used % 2, 2 * kv_heads * head_bytes
        shape = heads, rows, -(-head_dim // _CHUNK) * _CHUNK
        memory, seen_memory = np.zeros((2, *shape), np.float32), np.zeros(rows, np.int64)
        more = np.zeros((heads * rows + 4, _LANES), np.float32)
        # Slices of addresses count no references, which slices of arrays do, atomically.
        q = carray(_floats(memory.ctypes.data), shape)
        sums = carray(_floats(memory[1].ctypes.data), shape)
        totals = carray(_floats(more.ctypes.data), (heads, rows, _LANES))
        scores = carray(_floats(more[heads * rows :].ctypes.data), (4, _LANES))  # and scales
        scores[:] = 1
        highest = np.full((heads, rows), _UNSEEN)
        tops = carray(_floats(highest.ctypes.data), (heads, rows))
        seen_slots = carray(_integers(seen_memory.ctypes.data), rows)
        tokens = carray(
            _floats(job[_QUERIES] + 4 * token * job[_QUERY_STRIDE]), (queries, job[_QUERY_STRIDE])
        )
        _copy_rows(tokens, (first, group), head_dim, q, False, is_split)
        q *= np.float32(1 / np.sqrt(head_dim))
        last = (context - 1) // _LANES
        for page in range(max(begin + seen[:, 0].min(), 0) // _LANES, last + 1):
            slots = min(_LANES, context - page * _LANES)
            for row in range(used):
                first_seen, bits = seen[row // group]
                seen_slots[row] = _seen_slots(first_seen, bits, begin, page * _LANES, slots)
            for h in range(heads):
                for slot in range(h * _LANES // heads, (h + 1) * _LANES // heads if page < last else 0):
                    key = job[_PAGES] + (pages[page + 1] * _LANES + slot) * stride + first * head_bytes
                    _prefetch(key, heads * head_bytes)
                    _prefetch(key + kv_heads * head_bytes, heads * head_bytes)
                key = job[_PAGES] + pages[page] * _LANES * stride + (first + h) * head_bytes
                state = q[h], sums[h], tops[h], totals[h], scores
                add_page((key, key + kv_heads * head_bytes), stride, (head_dim, slots, seen_slots), state)
        for h in range(heads):
            for row in range(used):
                memory[1, h, row] *= np.float32(1) / more[h * rows + row].sum()
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
