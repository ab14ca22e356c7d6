"""The sources of the kernels are no compiler's and no processor's own: others take them too, without a warning."""

import shutil
import subprocess

import pytest

from lavagna.kernels.cpu import build

# Without OpenMP they run on one thread.
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")
ARM = "aarch64-linux-gnu-g++"


def check(compiler: str, level: str, folder) -> None:
    """Compile every source as far as its meaning; code is made of them in builds."""
    size, flags = (build.X86 | build.PLAIN)[level]
    for source in build.sources("cpp"):
        words = [compiler, *build.FLAGS, *WARNINGS, *flags, f"-DLAVAGNA_BYTES={size}", "-fsyntax-only", str(source)]
        done = subprocess.run(words, capture_output=True, text=True, cwd=folder)
        assert done.returncode == 0, done.stderr[:3000]


@pytest.mark.skipif(
    shutil.which("clang++") is None, reason="clang++ is not installed; the kernels were built by another"
)
@pytest.mark.parametrize("level", build.levels())
def test_clang_takes_them_at_every_level_of_this_processor(level, tmp_path):
    check("clang++", level, tmp_path)


@pytest.mark.skipif(shutil.which(ARM) is None, reason=f"{ARM}, which compiles for Arm, is not installed")
def test_a_compiler_for_arm_takes_them(tmp_path):
    check(ARM, "plain", tmp_path)


@pytest.mark.skipif(shutil.which(ARM) is None, reason=f"{ARM}, which compiles for Arm, is not installed")
@pytest.mark.skipif(
    shutil.which("qemu-aarch64") is None, reason="qemu-aarch64, which runs programs of Arm, is not installed"
)
@pytest.mark.slow
def test_on_arm_a_step_of_the_recurrence_is_that_of_its_formula(tmp_path):
    program = tmp_path / "step.cpp"
    program.write_text(STEP)
    words = [ARM, *build.FLAGS, "-DLAVAGNA_BYTES=16", "-static", str(program), str(build.SOURCE / "recurrence.cpp")]
    made = subprocess.run([*words, "-o", str(tmp_path / "step")], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[:3000]
    done = subprocess.run(["qemu-aarch64", str(tmp_path / "step")], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "right\n", done.stdout + done.stderr


# A delta rule over a few steps through the kernel's plain C interface, beside the same in a plain loop.
STEP = r"""
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

extern "C" void lavagna_recurrence(const int64_t* block);
using Numbers = std::vector<float>;

int main() {
    const int64_t steps = 37, keys = 19, values = 23;
    auto drawn = [](int64_t n, int seed) {
        Numbers x(n);
        for (int64_t i = 0; i < n; ++i) x[i] = std::sin(0.37 * i * seed + seed) / 3;
        return x;
    };
    Numbers q = drawn(steps * keys, 1), k = drawn(steps * keys, 2), v = drawn(steps * values, 3);
    Numbers g = drawn(steps, 4), beta = drawn(steps, 5), state = drawn(values * keys, 6);
    for (auto& x : g) x = -std::fabs(x);
    Numbers last(values * keys), out(steps * values), right(steps * values), memory = state;
    for (int64_t t = 0; t < steps; ++t)
        for (int64_t i = 0; i < values; ++i) {
            float *row = &memory[i * keys], found = 0, read = 0;
            for (int64_t j = 0; j < keys; ++j) row[j] *= std::exp(g[t]), found += row[j] * k[t * keys + j];
            for (int64_t j = 0; j < keys; ++j) {
                row[j] += (v[t * values + i] - beta[t] * found) * k[t * keys + j];
                read += row[j] * q[t * keys + j];
            }
            right[t * values + i] = read;
        }
    std::vector<int64_t> block = {1, steps, 1, keys, values, 1, 8, 1, 1, 0, 0, 0, 1, 0, 0};
    auto operand = [&](const Numbers* x, int64_t n) {
        for (int64_t number : {int64_t(x ? x->data() : nullptr), int64_t(0), x ? n : 0, int64_t(0), int64_t(1)})
            block.push_back(number);
        block.insert(block.end(), {0, 0});
    };
    operand(&q, keys), operand(&k, keys), operand(&v, values), operand(&g, 1);
    operand(nullptr, 0), operand(&beta, 1), operand(nullptr, 0);
    for (auto* x : {&state, &last, &out}) block.push_back(int64_t(x->data()));
    block.insert(block.end(), {0, 0});
    operand(nullptr, 0);
    block.insert(block.end(), 8, 0);
    lavagna_recurrence(block.data());
    float worst = 0;
    for (size_t i = 0; i < out.size(); ++i) worst = std::fmax(worst, std::fabs(out[i] - right[i]));
    for (size_t i = 0; i < last.size(); ++i) worst = std::fmax(worst, std::fabs(last[i] - memory[i]));
    if (worst < 1e-5f) std::puts("right");
    else std::printf("off by %g\n", worst);
}
"""
