// SPDX-License-Identifier: Apache-2.0
// A kernel of no use but to see that kernels are compiled, embedded and found.
struct probe_parameters {
    unsigned *out;
    unsigned count, value;
};

extern "C" __global__ void __launch_bounds__(128) probe_fill(probe_parameters p)
{
    unsigned n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n < p.count) p.out[n] = p.value + n;
}
