// Operators on small tensors, number by number or summed over the last axis: for generation, where a step has hundreds of them
// and each would cost more to be called through torch than it takes.
#include <cmath>

#include "gates.h"
#include "pack.h"

namespace lavagna {
namespace {

// In the order of CODES in pointwise.py.
enum Code : Index {
    kCopy, kAdd, kSub, kMul, kDiv, kMaximum, kMinimum, kWhere, kLerp, kAddcmul, kGlu,
    kGreater, kGreaterEqual, kLess, kLessEqual, kEqual, kNotEqual,
    kNeg, kAbs, kRelu, kReciprocal, kSqrt, kRsqrt, kSquare, kExp, kExpm1, kSigmoid, kSilu, kTanh, kGelu, kGeluTanh, kSoftplus,
    kLogSigmoid, kSin, kCos, kLog, kLog1p, kNot, kRemainder,
    kSum, kMean, kNorm, kLayerNorm, kGather
};

// What a number is kept as; the first three as everywhere.
enum Kind : Index { kFloat = 0, kDouble = 1, kBfloat = 2, kInteger = 3, kBool = 4 };

// A tensor over the axes of its task, strides in numbers; 0 repeats.
struct Term {
    const void* data;
    Index kind;
    Index stride[4];
};

struct Task {
    Index code;
    // Whether computed in double.
    Index twice;
    Index size[4];
    // What a code has beside its tensors; `along` is the stride of the axis that is gathered from.
    double number[2];
    Index along;
    // The result, then what is taken; of a layer norm also its mean and its inverse deviation, which are results.
    Term term[6];
};

constexpr Index kBlock = 256;

constexpr Index kBytes[] = {4, 8, 2, 8, 1};

template <class T, class From>
inline void spread(T* to, const From* from, Index stride, Index n) {
    for (Index i = 0; i < n; ++i) to[i] = T(from[i * stride]);
}
template <class T>
inline void spread(T* to, const uint16_t* from, Index stride, Index n) {
    if (stride == 1) return convert(to, from, n);
    for (Index i = 0; i < n; ++i) to[i] = T(from_bfloat(from[i * stride]));
}

template <class T, class To>
inline void collect(To* to, const T* from, Index stride, Index n) {
    for (Index i = 0; i < n; ++i) to[i * stride] = To(from[i]);
}
template <class T>
inline void collect(uint16_t* to, const T* from, Index stride, Index n) {
    if (stride == 1) return unpack_bfloat(to, from, n);
    for (Index i = 0; i < n; ++i) to[i * stride] = to_bfloat(float(from[i]));
}

template <class T>
constexpr Index kOwn = sizeof(T) == 8 ? kDouble : kFloat;

// n numbers of a term from number `at` on: where they lie, or in `room`, zero behind the last up to a whole vector.
template <class T>
inline const T* fetch(const Term& term, Index at, Index n, T* room) {
    const Index stride = term.stride[3];
    if (!stride && n > 1) {
        const T only = *fetch(term, at, 1, room);
        for (Index i = 0; i < n; i += kLanes<T>) store_vector(room + i, all<T>(only));
        return room;
    }
    if (term.kind == kOwn<T> && stride == 1) {
        if (n % kLanes<T> == 0) return (const T*)term.data + at;
        std::memcpy(room, (const T*)term.data + at, n * sizeof(T));
    } else if (term.kind == kFloat) {
        spread(room, (const float*)term.data + at, stride, n);
    } else if (term.kind == kDouble) {
        spread(room, (const double*)term.data + at, stride, n);
    } else if (term.kind == kBfloat) {
        spread(room, (const uint16_t*)term.data + at, stride, n);
    } else if (term.kind == kInteger) {
        spread(room, (const int64_t*)term.data + at, stride, n);
    } else {
        spread(room, (const uint8_t*)term.data + at, stride, n);
    }
    for (Index i = n; i % kLanes<T>; ++i) room[i] = 0;
    return room;
}

template <class T>
inline void give(const Term& term, Index at, Index n, const T* from) {
    const Index stride = term.stride[3];
    if (term.kind == kOwn<T> && stride == 1) {
        std::memcpy((T*)term.data + at, from, n * sizeof(T));
    } else if (term.kind == kFloat) {
        collect((float*)term.data + at, from, stride, n);
    } else if (term.kind == kDouble) {
        collect((double*)term.data + at, from, stride, n);
    } else if (term.kind == kBfloat) {
        collect((uint16_t*)term.data + at, from, stride, n);
    } else if (term.kind == kInteger) {
        collect((int64_t*)term.data + at, from, stride, n);
    } else {
        for (Index i = 0; i < n; ++i) ((uint8_t*)term.data)[at + i * stride] = from[i] != 0;
    }
}

// A row as it is, from number to number; false where it is not dense, or kept as something else.
inline bool moved(const Term& to, Index at, const Term& from, Index start, Index n) {
    if (to.kind != from.kind || to.stride[3] != 1 || from.stride[3] != 1) return false;
    const Index bytes = kBytes[to.kind];
    std::memcpy((char*)to.data + at * bytes, (const char*)from.data + start * bytes, n * bytes);
    return true;
}

template <class T, class Each>
inline void each(T* out, const T* a, const T* b, const T* c, Index n, Each f) {
    for (Index i = 0; i < n; i += kLanes<T>)
        store_vector(out + i, f(load_vector(a + i), load_vector(b + i), load_vector(c + i)));
}

template <class T, class One>
inline void lanes(T* out, const T* a, Index n, One f) {
    for (Index i = 0; i < n; ++i) out[i] = f(a[i]);
}

template <class T>
inline Vector<T> flag(Mask<T> mask) { return (Vector<T>)(mask & (Mask<T>)all<T>(T(1))); }

// A processor's own roots are not among the compiler's vectors, but it makes them of this loop.
template <class T>
inline Vector<T> root(Vector<T> x) {
    for (int i = 0; i < kLanes<T>; ++i) x[i] = std::sqrt(x[i]);
    return x;
}

template <class T>
inline Vector<T> tanh_of(Vector<T> x) { return x != x ? x : tanh<T>(x); }

template <class T>
void compute(const Task& task, T* out, const T* a, const T* b, const T* c, Index n) {
    using V = Vector<T>;
    const V zero{}, one = all<T>(T(1)), first = all<T>(T(task.number[0])), second = all<T>(T(task.number[1]));
    switch (task.code) {
        case kCopy: return each(out, a, a, a, n, [&](V x, V, V) { return x; });
        case kAdd: return each(out, a, b, b, n, [&](V x, V y, V) { return x + first * y; });
        case kSub: return each(out, a, b, b, n, [&](V x, V y, V) { return x - first * y; });
        case kMul: return each(out, a, b, b, n, [&](V x, V y, V) { return x * y; });
        case kDiv: return each(out, a, b, b, n, [&](V x, V y, V) { return x / y; });
        case kMaximum: return each(out, a, b, b, n, [&](V x, V y, V) { return ((x > y) | (x != x)) ? x : y; });
        case kMinimum: return each(out, a, b, b, n, [&](V x, V y, V) { return ((x < y) | (x != x)) ? x : y; });
        case kWhere: return each(out, a, b, c, n, [&](V x, V y, V z) { return x != zero ? y : z; });
        case kLerp:
            return each(out, a, b, c, n, [&](V x, V y, V w) {
                return magnitude<T>(w) < all<T>(T(0.5)) ? x + w * (y - x) : y - (y - x) * (one - w);
            });
        case kAddcmul: return each(out, a, b, c, n, [&](V x, V y, V z) { return x + first * y * z; });
        case kGlu: return each(out, a, b, b, n, [&](V x, V y, V) { return x * sigmoid<T>(y); });
        case kGreater: return each(out, a, b, b, n, [&](V x, V y, V) { return flag<T>(x > y); });
        case kGreaterEqual: return each(out, a, b, b, n, [&](V x, V y, V) { return flag<T>(x >= y); });
        case kLess: return each(out, a, b, b, n, [&](V x, V y, V) { return flag<T>(x < y); });
        case kLessEqual: return each(out, a, b, b, n, [&](V x, V y, V) { return flag<T>(x <= y); });
        case kEqual: return each(out, a, b, b, n, [&](V x, V y, V) { return flag<T>(x == y); });
        case kNotEqual: return each(out, a, b, b, n, [&](V x, V y, V) { return flag<T>(x != y); });
        case kNeg: return each(out, a, a, a, n, [&](V x, V, V) { return -x; });
        case kAbs: return each(out, a, a, a, n, [&](V x, V, V) { return magnitude<T>(x); });
        case kRelu: return each(out, a, a, a, n, [&](V x, V, V) { return x < zero ? zero : x; });
        case kReciprocal: return each(out, a, a, a, n, [&](V x, V, V) { return one / x; });
        case kSqrt: return each(out, a, a, a, n, [&](V x, V, V) { return root<T>(x); });
        case kRsqrt: return each(out, a, a, a, n, [&](V x, V, V) { return one / root<T>(x); });
        case kSquare: return each(out, a, a, a, n, [&](V x, V, V) { return x * x; });
        case kExp: return each(out, a, a, a, n, [&](V x, V, V) { return x != x ? x : exp<T>(x); });
        case kExpm1: return each(out, a, a, a, n, [&](V x, V, V) { return x != x ? x : exp_less_one<T>(x); });
        case kSigmoid: return each(out, a, a, a, n, [&](V x, V, V) { return x != x ? x : sigmoid<T>(x); });
        case kSilu: return each(out, a, a, a, n, [&](V x, V, V) { return x / (one + exp<T>(-x)); });
        case kTanh: return each(out, a, a, a, n, [&](V x, V, V) { return tanh_of<T>(x); });
        case kGelu:
            return lanes(out, a, n, [](T x) { return x * T(0.5) * (1 + std::erf(x * T(0.70710678118654752440))); });
        case kGeluTanh:
            return each(out, a, a, a, n, [&](V x, V, V) {
                const V inner = all<T>(T(0.79788456080286535588)) * (x + all<T>(T(0.044715)) * x * x * x);
                return all<T>(T(0.5)) * x * (one + tanh_of<T>(inner));
            });
        case kSoftplus:
            return each(out, a, a, a, n, [&](V x, V, V) {
                const V y = x * first, soft = (y > zero ? y : zero) + log_one_more<T>(exp<T>(-magnitude<T>(y)));
                return ((y > second) | (x != x)) ? x : soft / first;
            });
        case kLogSigmoid:
            return each(out, a, a, a, n, [&](V x, V, V) {
                return ((x < zero) | (x != x)) ? x - log_one_more<T>(exp<T>(x)) : -log_one_more<T>(exp<T>(-x));
            });
        case kSin: return lanes(out, a, n, [](T x) { return std::sin(x); });
        case kCos: return lanes(out, a, n, [](T x) { return std::cos(x); });
        case kLog: return lanes(out, a, n, [](T x) { return std::log(x); });
        case kLog1p: return lanes(out, a, n, [](T x) { return std::log1p(x); });
        case kNot: return each(out, a, a, a, n, [&](V x, V, V) { return flag<T>(x == zero); });
        case kRemainder: {
            // With the sign of what is divided by, as Python has it.
            const T by = T(task.number[0]);
            return lanes(out, a, n, [by](T x) {
                const T rest = std::fmod(x, by);
                return rest != 0 && (rest < 0) != (by < 0) ? rest + by : rest;
            });
        }
    }
}

template <class T>
void pointwise(const Task& task, const Index* start) {
    const Term& result = task.term[0];
    if (task.code == kCopy && moved(result, start[0], task.term[1], start[1], task.size[3])) return;
    T room[4][kBlock];
    for (Index x = 0; x < task.size[3]; x += kBlock) {
        const Index n = task.size[3] - x < kBlock ? task.size[3] - x : kBlock;
        const T* in[3];
        for (int i = 0; i < 3; ++i) {
            const Term& term = task.term[i + 1];
            // What a code does not take is not looked at.
            in[i] = term.data ? fetch(term, start[i + 1] + x * term.stride[3], n, room[i + 1]) : in[0];
        }
        const Index at = start[0] + x * result.stride[3];
        const bool direct = result.kind == kOwn<T> && result.stride[3] == 1 && n % kLanes<T> == 0;
        T* out = direct ? (T*)result.data + at : room[0];
        compute(task, out, in[0], in[1], in[2], n);
        if (!direct) give(result, at, n, out);
    }
}

// The sum over a row of what `f` makes of its vectors, which are zero behind the last number.
template <class T, class Each>
inline T total(const Term& term, Index start, Index size, Each f) {
    T room[kBlock];
    Vector<T> sums[2] = {};
    for (Index x = 0; x < size; x += kBlock) {
        const Index n = size - x < kBlock ? size - x : kBlock;
        const T* in = fetch(term, start + x * term.stride[3], n, room);
        for (Index i = 0; i < n; i += kLanes<T>) sums[i / kLanes<T> % 2] += f(load_vector(in + i), n - i);
    }
    return sum<T>(sums[0] + sums[1]);
}

template <class T>
void layer_norm(const Task& task, const Index* start) {
    using V = Vector<T>;
    const Index size = task.size[3];
    const Term& x = task.term[1];
    const T mean = total<T>(x, start[1], size, [](V v, Index) { return v; }) / T(size);
    const T square = total<T>(x, start[1], size, [&](V v, Index left) {
        v -= all<T>(mean);
        for (Index i = left; i < kLanes<T>; ++i) v[i] = 0;
        return v * v;
    });
    const T scale = T(1) / std::sqrt(square / T(size) + T(task.number[0]));
    T room[4][kBlock];
    for (Index at = 0; at < size; at += kBlock) {
        const Index n = size - at < kBlock ? size - at : kBlock;
        const T* in = fetch(x, start[1] + at * x.stride[3], n, room[1]);
        each(room[0], in, in, in, n, [&](V v, V, V) { return (v - all<T>(mean)) * all<T>(scale); });
        for (int i = 2; i < 4; ++i) {
            const Term& factor = task.term[i];
            if (!factor.data) continue;
            const T* by = fetch(factor, start[i] + at * factor.stride[3], n, room[i]);
            each(room[0], room[0], by, by, n, [&](V v, V y, V) { return i == 2 ? v * y : v + y; });
        }
        give(task.term[0], start[0] + at * task.term[0].stride[3], n, room[0]);
    }
    give(task.term[4], start[4], 1, &mean);
    give(task.term[5], start[5], 1, &scale);
}

template <class T>
void gather(const Task& task, const Index* start) {
    const Term &out = task.term[0], &from = task.term[1], &index = task.term[2];
    const auto* place = (const int64_t*)index.data + start[2];
    if (!index.stride[3] && moved(out, start[0], from, start[1] + place[0] * task.along, task.size[3])) return;
    T room[kBlock];
    const Index step = index.stride[3] ? 1 : kBlock;
    for (Index x = 0; x < task.size[3]; x += step) {
        const Index n = task.size[3] - x < step ? task.size[3] - x : step;
        const Index at = start[1] + place[x * index.stride[3]] * task.along + x * from.stride[3];
        give(out, start[0] + x * out.stride[3], n, fetch(from, at, n, room));
    }
}

template <class T>
void row(const Task& task, const Index* start) {
    using V = Vector<T>;
    const Term& x = task.term[1];
    const Index size = task.size[3];
    if (task.code < kSum) return pointwise<T>(task, start);
    if (task.code == kGather) return gather<T>(task, start);
    if (task.code == kLayerNorm) return layer_norm<T>(task, start);
    const bool squared = task.code == kNorm;
    T y = total<T>(x, start[1], size, [squared](V v, Index) { return squared ? v * v : v; });
    if (task.code == kMean) y /= T(size);
    if (task.code == kNorm) y = std::sqrt(y);
    give(task.term[0], start[0], 1, &y);
}

void serve(const Task& task) {
    Index start[6] = {};
    for (Index a = 0; a < task.size[0]; ++a)
        for (Index b = 0; b < task.size[1]; ++b)
            for (Index c = 0; c < task.size[2]; ++c) {
                for (int i = 0; i < 6; ++i) {
                    const Index* stride = task.term[i].stride;
                    start[i] = a * stride[0] + b * stride[1] + c * stride[2];
                }
                task.twice ? row<double>(task, start) : row<float>(task, start);
            }
}

}  // namespace
}  // namespace lavagna

// Tasks one after another: how many, then they themselves.
extern "C" __attribute__((visibility("default"))) void lavagna_pointwise(const int64_t* block) {
    const auto* tasks = reinterpret_cast<const lavagna::Task*>(block + 1);
    for (int64_t i = 0; i < block[0]; ++i) lavagna::serve(tasks[i]);
}
