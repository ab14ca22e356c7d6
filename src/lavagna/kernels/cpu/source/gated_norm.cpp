// Rows divided by the root of their mean square, with weights, and a SiLU of a gate in front of that or behind it. Rows don't know
// of each other but for the gradient of weights, which is given apart for each chunk of rows: no sum depends on the threads.
#include <cmath>

#include "gates.h"
#include "pack.h"
#include "tasks.h"

namespace lavagna {
namespace {

struct Norm {
    // Row r has the weights r % groups, `width` each; a task has `chunk` rows.
    Index rows, width, groups, chunk, threads;
    // The dtype of all sums, those of x and y and of the gate; where the gate stands: 0 none, 1 behind, 2 in front.
    Index wide, element, gate_element, gated;
    double eps;
    // (rows, width) dense; (groups, width) or null in the wide dtype.
    const void *x, *gate, *weight;
    void* y;
    // Backward: the gradient of y, as y is; those of x and the gate, as they are; that of weights, (chunks, groups, width), wide.
    const void* d_y;
    void *d_x, *d_gate, *d_weight;
};

// A row in the wide dtype: where it lies, or brought to `room`.
template <class T>
inline const T* wide_row(const void* data, Index element, Index offset, Index n, T* room) {
    if (element == Index(sizeof(T) == 8 ? Element::kDouble : Element::kFloat)) return (const T*)data + offset;
    read(room, {data, 0, 0, 0, 1, element, 0}, offset, n);
    return room;
}

template <class T>
class Chunk {
  public:
    explicit Chunk(const Norm& call)
        : call_(call),
          width_(call.width),
          stride_((call.width + kLanes<T> - 1) / kLanes<T> * kLanes<T> + 64 / Index(sizeof(T))),
          scratch_(8 * stride_) {
        T* at = scratch_.get();
        for (T** row : {&x_, &gate_, &d_y_, &out_, &d_gate_, &normed_, &bent_, &slope_}) *row = at, at += stride_;
    }

    void forward(Index first, Index end) {
        for (Index r = first; r < end; ++r) {
            bring(r);
            T* const y = direct(call_.y, call_.element, r, out_);
            const T* const weight = weights(r);
            each([&](Index c, Index n) {
                Vector<T> value = load_vector(normed_ + c);
                if (weight) value *= load_some(weight + c, n);
                if (call_.gated == 1) value *= load_vector(bent_ + c);
                store_some(y + c, value, n);
            });
            if (y == out_) unpack<Real<T>>(call_.y, call_.element, r * width_, out_, width_);
        }
    }

    // u the normed row, w the weights, a the bent gate behind: y = u w a. With z what is normed, z = x or x a in front:
    //     du = dy w a        dz = root (du - u mean(du u))
    void backward(Index first, Index end, T* d_weight) {
        if (d_weight) std::memset(d_weight, 0, call_.groups * width_ * sizeof(T));
        for (Index r = first; r < end; ++r) {
            bring(r);
            const T* const d_y = wide_row(call_.d_y, call_.element, r * width_, width_, d_y_);
            T *const d_x = direct(call_.d_x, call_.element, r, out_), *const d_gate = direct(call_.d_gate, call_.gate_element, r, d_gate_);
            const T* const weight = weights(r);
            T* const d_w = d_weight ? d_weight + r % call_.groups * width_ : nullptr;
            Vector<T> product{};
            each([&](Index c, Index n) {
                const Vector<T> u = load_vector(normed_ + c), d = load_some(d_y + c, n);
                Vector<T> du = d;
                if (call_.gated == 1) du *= load_vector(bent_ + c);
                if (d_w) store_some(d_w + c, load_some(d_w + c, n) + du * u, n);
                const Vector<T> w = weight ? load_some(weight + c, n) : all(T(1));
                product += du * w * u;
                if (call_.gated == 1 && d_gate) store_some(d_gate + c, d * w * u * load_vector(slope_ + c), n);
            });
            const Vector<T> mean = all(sum<T>(product) / T(width_)), root = all(root_);
            each([&](Index c, Index n) {
                const Vector<T> u = load_vector(normed_ + c);
                Vector<T> du = load_some(d_y + c, n);
                if (weight) du *= load_some(weight + c, n);
                if (call_.gated == 1) du *= load_vector(bent_ + c);
                Vector<T> dz = root * (du - u * mean);
                if (call_.gated == 2) {
                    if (d_gate) store_some(d_gate + c, dz * load_some(row_ + c, n) * load_vector(slope_ + c), n);
                    dz *= load_vector(bent_ + c);
                }
                if (d_x) store_some(d_x + c, dz, n);
            });
            if (d_x == out_) unpack<Real<T>>(call_.d_x, call_.element, r * width_, out_, width_);
            if (d_gate == d_gate_ && d_gate) unpack<Real<T>>(call_.d_gate, call_.gate_element, r * width_, d_gate_, width_);
        }
    }

  private:
    static Index wide() { return Index(sizeof(T) == 8 ? Element::kDouble : Element::kFloat); }

    template <class Each>
    void each(Each each) const {
        for (Index c = 0; c < width_; c += kLanes<T>) each(c, width_ - c);
    }
    // Where row r of a result may be written: in its place, in `room`, or, if it isn't wanted, nowhere.
    T* direct(void* to, Index element, Index r, T* room) const {
        if (!to) return nullptr;
        return element == wide() ? (T*)to + r * width_ : room;
    }
    const T* weights(Index r) const { return call_.weight ? (const T*)call_.weight + r % call_.groups * width_ : nullptr; }

    // Row r normed, its gate bent, and the slope of that.
    void bring(Index r) {
        row_ = wide_row(call_.x, call_.element, r * width_, width_, x_);
        if (call_.gated) {
            const T* const gate = wide_row(call_.gate, call_.gate_element, r * width_, width_, gate_);
            each([&](Index c, Index n) {
                const Silu<T> bent(load_some(gate + c, n));
                store_vector(bent_ + c, bent.value);
                store_vector(slope_ + c, bent.slope);
            });
        }
        Vector<T> square{};
        each([&](Index c, Index n) {
            Vector<T> z = load_some(row_ + c, n);
            if (call_.gated == 2) z *= load_vector(bent_ + c);
            square += z * z;
            store_vector(normed_ + c, z);
        });
        const T mean = sum<T>(square) / T(width_);
        // Of zeros, without an eps, all stays finite.
        const T under = call_.eps ? mean + T(call_.eps) : mean > T(0) || mean != mean ? mean : T(1);
        root_ = T(1) / std::sqrt(under);
        const Vector<T> root = all(root_);
        each([&](Index c, Index) { store_vector(normed_ + c, load_vector(normed_ + c) * root); });
    }

    const Norm& call_;
    const Index width_, stride_;
    Scratch<T> scratch_;
    T *x_, *gate_, *d_y_, *out_, *d_gate_, *normed_, *bent_, *slope_;
    const T* row_ = nullptr;
    T root_ = 0;
};

template <class T>
void run(const Norm& call, bool back) {
    const Index tasks = (call.rows + call.chunk - 1) / call.chunk;
    auto task = [&](Index i) {
        Chunk<T> chunk(call);
        const Index first = i * call.chunk, end = first + call.chunk < call.rows ? first + call.chunk : call.rows;
        T* const d_weight = call.d_weight ? (T*)call.d_weight + i * call.groups * call.width : nullptr;
        back ? chunk.backward(first, end, d_weight) : chunk.forward(first, end);
    };
    each_task(tasks, call.threads, task);
}

void serve(const int64_t* block, bool back) {
    const auto& call = *reinterpret_cast<const Norm*>(block);
    call.wide == Index(Element::kDouble) ? run<double>(call, back) : run<float>(call, back);
}

}  // namespace
}  // namespace lavagna

extern "C" __attribute__((visibility("default"))) void lavagna_gated_norm(const int64_t* block) {
    lavagna::serve(block, false);
}

extern "C" __attribute__((visibility("default"))) void lavagna_gated_norm_backward(const int64_t* block) {
    lavagna::serve(block, true);
}
