/* SPDX-License-Identifier: Apache-2.0
 * A C++17 program that uses attn: a window over a batch in the layout [batch, token, head, feature], with the
 * log-sum-exp, against the formula written down plainly. */
#include <attn/attn.h>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <vector>

namespace
{

constexpr int B = 2, H = 3, S = 9, D = 4, LEFT = 2, RIGHT = 1;

using numbers = std::vector<float>;

numbers waves(double step)
{
    numbers x(B * S * H * D);
    for (std::size_t i = 0; i < x.size(); i++) x[i] = static_cast<float>(std::cos(step * static_cast<double>(i)));
    return x;
}

double at(const numbers &x, int b, int i, int h, int d)
{
    return static_cast<double>(x[static_cast<std::size_t>(((b * S + i) * H + h) * D + d)]);
}

void check(attn_status status)
{
    if (status != ATTN_OK) throw std::runtime_error(attn_last_error());
}

/* The largest difference of one row's output and log-sum-exp. */
double row_error(const attn_problem &p, const numbers &q, const numbers &k, const numbers &v, const numbers &out, int b,
                 int i, int h)
{
    double sum = 0, weighted[D] = {};
    for (int j = std::max(0, i - LEFT); j <= std::min(S - 1, i + RIGHT); j++) {
        double score = 0;
        for (int d = 0; d < D; d++) score += at(q, b, i, h, d) * at(k, b, j, h, d);
        const double weight = std::exp(static_cast<double>(p.scale) * score);
        sum += weight;
        for (int d = 0; d < D; d++) weighted[d] += weight * at(v, b, j, h, d);
    }
    const float lse = static_cast<const float *>(p.lse.data)[(b * H + h) * S + i];
    double error = std::abs(static_cast<double>(lse) - std::log(sum));
    for (int d = 0; d < D; d++) error = std::max(error, std::abs(at(out, b, i, h, d) - weighted[d] / sum));
    return error;
}

int run()
{
    attn_context *made = nullptr;
    check(attn_create(nullptr, &made));
    const std::unique_ptr<attn_context, decltype(&attn_destroy)> ctx(made, attn_destroy);

    numbers q = waves(0.7), k = waves(0.3), v = waves(0.9), out(q.size()), lse(B * H * S);
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bshd(q.data(), ATTN_F32, B, H, S, D);
    p.k = attn_bshd(k.data(), ATTN_F32, B, H, S, D);
    p.v = attn_bshd(v.data(), ATTN_F32, B, H, S, D);
    p.out = attn_bshd(out.data(), ATTN_F32, B, H, S, D);
    p.lse = attn_bhsd(lse.data(), ATTN_F32, B, H, S, 1);
    p.mask = ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT;
    p.window_left = LEFT;
    p.window_right = RIGHT;
    p.scale = 0.5f;
    attn_plan plan = ATTN_PLAN_INIT;
    check(attn_query(ctx.get(), ATTN_OP_FORWARD, &p, nullptr, nullptr, &plan));
    check(attn_forward(ctx.get(), &p, nullptr));

    double error = 0;
    for (int b = 0; b < B; b++)
        for (int i = 0; i < S; i++)
            for (int h = 0; h < H; h++) error = std::max(error, row_error(p, q, k, v, out, b, i, h));
    std::cout << "C++17: backend " << plan.backend << ", kernel " << plan.kernel << ", " << plan.threads
              << " thread(s), because " << plan.reason << "; error " << error << '\n';
    return !(error < 1e-6);
}

} // namespace

int main()
{
    try {
        return run();
    } catch (const std::exception &e) {
        std::cerr << e.what() << '\n';
        return 1;
    }
}
